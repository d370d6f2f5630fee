"""Streams of prepacked bins beside other people's: first bin, resume in the middle of epoch 3, ids a second, memory."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, Sample
from streaming_peers import OPENERS, interpreter_of
from workload import Workspace, in_words, serving

from packhorse.client import connect

NOTE = (
    "peers that stream: the ids of the same bins. Ours come from `packhorse serve`, which packs them, over loopback; "
    "MosaicML Streaming reads them from shards and Grain from one memory-mapped file, both packed beforehand, in the "
    "reader's process and in shuffled order; a tf.data service (one worker, over loopback) reads them from a TFRecord "
    "file and shuffles them through a buffer of 10,000 bins. Each is measured in a process of its own, without "
    "workers. The first bin: from opening a client, a dataset or an iterator (imports and one run before it not "
    "counted) until a bin's ids are there; likewise in the middle of the third epoch. Memory: RssAnon and shared "
    "memory of the reader beyond its imports, for ours and tf.data's with all of the server's; pages of mapped files "
    "are not counted for anyone. Run only when it is named. PEERS_PYTHON names an interpreter for peers that are not "
    "installed here: TensorFlow is too large to be."
)
_READ_SECONDS = 5.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    return [row for size in (sizes.small, sizes.medium) for row in _rows_of(workspace, size)]


def _rows_of(workspace: Workspace, num_sequences: int) -> list[Row]:
    dataset, root = f"bench-{num_sequences}", workspace.root_of(num_sequences)
    folder = _prepacked(workspace, root, dataset)
    with serving(root) as (address, pid):
        ours = _measured("packhorse", folder, address, str(pid), dataset)
    size = f"{in_words(num_sequences)} sequences"
    rows = []
    for peer in OPENERS.keys() - {"packhorse"}:
        if interpreter_of(peer) is None:
            rows.append(Row(what=f"streams beside {peer}", size=size, ours="", peer=f"{peer}: not installed"))
            continue
        rows += _compared(size, ours, peer, _measured(peer, folder))
    return sorted(rows, key=lambda row: row.what)


def _prepacked(workspace: Workspace, root: Path, dataset: str) -> Path:
    """Writes the bins of one epoch, end to end, where the peers read them."""
    folder = workspace.root / f"prepacked-{dataset}"
    folder.mkdir(exist_ok=True)
    with connect(f"embedded:{root}") as client:
        blocks = list(client.stream_bins(dataset, seed=0))
    np.save(folder / "ids.npy", np.concatenate([block.ids for block in blocks]).astype(np.uint32))
    np.save(
        folder / "bin_ends.npy", np.cumsum(np.concatenate([np.diff(block.bin_ends, prepend=0) for block in blocks]))
    )
    return folder


def _measured(name: str, folder: Path, *more: str) -> dict[str, Any]:
    command = [str(interpreter_of(name)), str(Path(__file__).with_name("streaming_peers.py")), name, str(folder)]
    done = subprocess.run([*command, str(_READ_SECONDS), *more], capture_output=True, text=True, timeout=280)
    for line in done.stdout.splitlines():
        if line.startswith("MEASURED "):
            return dict(json.loads(line.removeprefix("MEASURED ")))
    raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")


def _compared(size: str, ours: dict[str, Any], peer: str, theirs: dict[str, Any]) -> list[Row]:
    def ms(of: dict[str, Any], name: str) -> Sample:
        return Sample((1e3 * of[name],), "ms")

    def row(what: str, one: Sample, other: Sample, ratio: float) -> Row:
        return Row(
            what=what,
            size=size,
            ours=str(one),
            peer=f"{other}, {peer}",
            ratio=ratio,
            target="first",
            reached=ratio >= 1,
        )

    rate, their_rate = (Sample((of["ids_per_second"] / 1e6,), "M ids/s") for of in (ours, theirs))
    memory = Sample((ours["memory_mb"],), "MB")
    their_memory = Sample((theirs["memory_mb"],), "MB")
    return [
        *(
            row(what, ms(ours, name), ms(theirs, name), theirs[name] / ours[name])
            for what, name in (
                ("first bin", "first_seconds"),
                ("first bin in the middle of epoch 3", "resume_seconds"),
            )
        ),
        row("ids, bin by bin", rate, their_rate, rate.median / their_rate.median),
        row("memory while streaming", memory, their_memory, their_memory.median / max(memory.median, 1e-9)),
    ]
