"""Ranks of one model that get the same batches: each reads its own stream, or the first reads and sends."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from bench_served_tokens import prepared
from harness import Row, Sample, interleaved
from workload import Workspace, serving

NOTE = (
    "peer-ranks: four processes that want the same batches of 8 bins of 8,192 tokens, from `packhorse serve --tokens` "
    "in a process of its own, without workers, on two cores. Alone: each reads its own stream. Together: the first "
    "reads, and sends by `torch.distributed` (gloo, over loopback), as `LoaderOptions(peers=…)` does. The copy from "
    "shared memory reads nothing: four processes copy a batch's bytes out of one mapped file, and meet at a barrier. "
    "Server seconds are processor time of the server for each thousand batches."
)
_RANKS = 4


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_batches = 200 if workspace.sizes.repeats > 3 else 40
    _, root = prepared(workspace)
    server_seconds: dict[str, list[float]] = {}
    with serving(root, "--tokens") as (address, pid):

        def milliseconds(way: str) -> float:
            before = _processor_seconds(pid)
            found = _milliseconds(address, way, num_batches)
            spent = _processor_seconds(pid) - before
            server_seconds.setdefault(way, []).append(1000 * spent / num_batches)
            return found

        ways: list[Callable[[], float]] = [partial(milliseconds, way) for way in ("collective", "stream", "memory")]
        together, alone, memory = interleaved(workspace.sizes.repeats, *ways)
    ours, theirs, least = Sample(together, "ms"), Sample(alone, "ms"), Sample(memory, "ms")
    spent, spent_alone = (Sample(tuple(server_seconds[way]), "s") for way in ("collective", "stream"))
    size = f"{_RANKS} ranks, 8 × 8,192"
    return [
        Row(
            what="a batch on all ranks, one reads",
            size=size,
            ours=str(ours),
            peer=f"{theirs}, each reads",
            ratio=theirs.median / ours.median,
        ),
        Row(
            what="a batch on all ranks, one reads",
            size=size,
            ours=str(ours),
            peer=f"{least}, only a copy from shared memory",
            ratio=least.median / ours.median,
        ),
        Row(
            what="server for 1,000 batches, one reads",
            size=size,
            ours=str(spent),
            peer=f"{spent_alone}, each reads",
            ratio=spent_alone.median / spent.median,
        ),
    ]


def _milliseconds(address: str, way: str, num_batches: int) -> float:
    """Returns the milliseconds of a batch on all ranks."""
    folder = Path(mkdtemp())
    (folder / "shared").write_bytes(bytes(8 << 20))
    script = Path(__file__).with_name("peer_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, address, folder, str(rank), str(_RANKS), way, str(num_batches)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(_RANKS)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * _RANKS
    return 1000 * float(printed[0].split()[0]) / num_batches


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
