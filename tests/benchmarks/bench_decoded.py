"""Memory and batches of a host whose loaders read one corpus: decoded by each worker, decoded once, and mapped."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row
from workload import Workspace

from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare

NOTE = (
    "decoded: 8 ranks with 4 workers each (2 with 2 by `--quick`) on one machine, bins of 4,096 tokens, 8 a batch, an "
    "`embedded:` dataset, random order. Memory is what is private to a worker (Private_Dirty of smaps_rollup, mean of "
    "all workers) after each has made its batches; Parquet in row groups of 1,000 sequences, and a Megatron pair of "
    "the same tokens. Batches are of all ranks together, after each has made its first one."
)
_MAX_SEQ_LEN, _GROUP_ROWS, _BATCHES = 4096, 1000, 24


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    is_full = workspace.sizes.repeats > 3
    num_ranks, num_workers = (8, 4) if is_full else (2, 2)
    folder = _prepared(workspace)
    found = {
        what: _measured(folder, kind, num_ranks, num_workers)
        for what, kind in {
            "Megatron": "megatron",
            "Parquet": "parquet",
            "Parquet, decoded on the way": "decoded",
            "Parquet, decoded before": "decoded",
        }.items()
    }
    mapped_mb, mapped_rate = found.pop("Megatron")
    size = f"{num_ranks} ranks × {num_workers} workers"
    rows = []
    for what, (megabytes, rate) in found.items():
        times, is_ours = megabytes / mapped_mb, "decoded" in what
        rows.append(
            Row(
                what=f"private memory of a worker, {what}",
                size=size,
                ours=f"{megabytes:.0f} MB",
                peer=f"{mapped_mb:.0f} MB, Megatron",
                ratio=times,
                target="≤ 1.5×" if is_ours else "",
                reached=times <= 1.5 if is_ours else None,
            )
        )
        rows.append(
            Row(
                what=f"batches, {what}",
                size=size,
                ours=f"{rate:.0f} a second",
                peer=f"{mapped_rate:.0f} a second, Megatron",
                ratio=rate / mapped_rate,
            )
        )
    return rows


def _prepared(workspace: Workspace) -> Path:
    """Writes 40 million tokens (a tenth with --quick) as Parquet and Megatron, and a dataset of them."""
    folder, rng = workspace.root / "decoded", np.random.default_rng(1)
    folder.mkdir()
    lengths = np.minimum(rng.lognormal(5.5, 1, workspace.sizes.small // 10).astype(np.int64) + 1, _MAX_SEQ_LEN)
    tokens = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.int32)
    with MegatronWriter(folder / "corpus", vocab_size=50_000) as writer:
        writer.append_many(tokens, lengths)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
    pq.write_table(table, folder / "corpus.parquet", row_group_size=_GROUP_ROWS)
    prepare(f"{folder}/corpus.idx", output=folder / "root" / "corpus", max_seq_len=_MAX_SEQ_LEN)
    return folder


def _measured(folder: Path, kind: str, num_ranks: int, num_workers: int) -> tuple[float, float]:
    """Returns the private MB of a worker, and batches a second of all ranks."""
    script = Path(__file__).with_name("decoded_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, folder, kind, *map(str, (rank, num_ranks, num_workers, _BATCHES))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for rank in range(num_ranks)
    ]

    def answers() -> list[str]:
        lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go on\n")
        return lines

    assert answers() == ["ready\n"] * num_ranks
    found = [json.loads(line) for line in answers()]
    assert [rank.wait(60) for rank in ranks] == [0] * num_ranks
    seconds = max(one["ended"] for one in found) - min(one["began"] for one in found)
    return fmean(one["private_mb"] for one in found), num_ranks * num_workers * _BATCHES / seconds
