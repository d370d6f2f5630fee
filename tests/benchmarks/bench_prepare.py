"""Preparing a Parquet file, as whole processes; beside seqpack.prepare on the same file."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row, Sample
from workload import MAX_SEQ_LEN, PACKHORSE, Workspace, in_words, memory_mb

_LISTS_AT_ONCE = 50_000

NOTE = (
    "prepare: `packhorse prepare` and `python -m seqpack.prepare` as whole processes on the same Parquet file, from "
    "start to exit; ours also checks, sorts and checksums. Peak memory is the kernel's VmHWM, mapped pages "
    "included. seqpack runs once, between runs of ours; both find their bytecode. On all cores: one thread for each, "
    "anonymous memory of all processes together. Lists of tokens have their lengths read from repetition levels."
)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_rows = workspace.sizes.medium
    source = workspace.parquet(num_rows)
    source.read_bytes()  # into the page cache, for both
    few = ["--input", str(workspace.parquet(workspace.sizes.small)), "--length-column", "length"]
    for command in (
        [PACKHORSE, "prepare"],
        [sys.executable, "-m", "seqpack.prepare"],
    ):  # bytecode and kernels, for both
        measured([*command, *few, "--max-seq-len", str(MAX_SEQ_LEN), "--output"], workspace.root / "first")
    rows = []
    for what, columns in (
        ("prepare", ["--length-column", "length"]),
        ("prepare, with an id column", ["--length-column", "length", "--id-column", "id"]),
    ):
        arguments = ["--input", str(source), *columns, "--max-seq-len", str(MAX_SEQ_LEN), "--output"]
        before = measured([PACKHORSE, "prepare", *arguments], workspace.root / "ours")
        peer = measured([sys.executable, "-m", "seqpack.prepare", *arguments], workspace.root / "theirs")
        after = [measured([PACKHORSE, "prepare", *arguments], workspace.root / "ours") for _ in range(2)]
        ours = Sample(tuple(run.seconds for run in (before, *after)), "s")
        our_peak = max(run.peak_mb for run in (before, *after))
        ratio = peer.seconds / ours.median
        size = f"{in_words(num_rows)} rows"
        rows += [
            Row(
                what=what,
                size=size,
                ours=str(ours),
                peer=f"{Sample((peer.seconds,), 's')}, seqpack.prepare",
                ratio=ratio,
                target="≥ 25×",
                reached=ratio >= 25,
            ),
            Row(
                what=f"{what}: peak memory",
                size=size,
                ours=f"{our_peak:.0f} MB",
                peer=f"{peer.peak_mb:,.0f} MB, seqpack.prepare",
                ratio=peer.peak_mb / our_peak,
            ),
        ]
    return [*rows, *_of_many(workspace), _of_lists(workspace)]


def _of_many(workspace: Workspace) -> list[Row]:
    """Ten times as many rows, by as many threads as there are processors, beside the fewer ones."""
    sizes = (workspace.sizes.medium, workspace.sizes.large)
    flags = ["--length-column", "length", "--max-seq-len", str(MAX_SEQ_LEN)]
    flags += ["--workers", str(os.cpu_count()), "--output"]
    rows = []
    for what, columns in (
        ("prepare on all cores", []),
        ("prepare on all cores, with an id column", ["--id-column", "id"]),
    ):
        few, many = (
            measured(
                [PACKHORSE, "prepare", "--input", str(workspace.parquet(size)), *columns, *flags],
                workspace.root / "ours",
            )
            for size in sizes
        )
        rate = sizes[1] / many.seconds
        rows += [
            Row(
                what=what,
                size=f"{in_words(sizes[1])} rows",
                ours=f"{Sample((many.seconds,), 's')}, {rate / 1e6:.1f} M rows/s",
                peer=f"{Sample((few.seconds,), 's')}, {in_words(sizes[0])} rows",
                target="≥ 10 M rows/s",
                reached=rate >= 10e6,
            ),
            Row(
                what=f"{what}: anonymous memory of all processes",
                size=f"{in_words(sizes[1])} rows",
                ours=f"{many.anonymous_mb:,.0f} MB",
                peer=f"{few.anonymous_mb:,.0f} MB, {in_words(sizes[0])} rows",
                ratio=few.anonymous_mb / many.anonymous_mb,
                target="≥ 0.8×, < 1 GB",
                reached=many.anonymous_mb < 1000 and few.anonymous_mb >= 0.8 * many.anonymous_mb,
            ),
        ]
    return rows


def _of_lists(workspace: Workspace) -> Row:
    """The same rows prepared from their tokens and from their lengths, in turns."""
    num_rows = workspace.sizes.small
    source = workspace.root / f"tokens-{num_rows}.parquet"
    lengths = pq.read_table(workspace.parquet(num_rows), columns=["length"])["length"].to_numpy()
    schema = pa.schema([("length", pa.int32()), ("input_ids", pa.list_(pa.uint16()))])
    random = np.random.default_rng(0)
    with pq.ParquetWriter(source, schema) as writer:
        for first in range(0, num_rows, _LISTS_AT_ONCE):
            some = lengths[first : first + _LISTS_AT_ONCE]
            offsets = np.concatenate(([0], np.cumsum(some, dtype=np.int32)))
            tokens = random.integers(0, 50_000, offsets[-1], dtype=np.uint16)
            writer.write_table(pa.table([some, pa.ListArray.from_arrays(offsets, tokens)], schema=schema))
    arguments = ["--input", str(source), "--max-seq-len", str(MAX_SEQ_LEN), "--length-column"]
    of_lengths, of_lists = [], []
    for _ in range(3):
        for column, seconds in (("length", of_lengths), ("input_ids", of_lists)):
            command = [PACKHORSE, "prepare", *arguments, column, "--output"]
            seconds.append(measured(command, workspace.root / "ours").seconds)
    ours, peer = Sample(tuple(of_lists), "s"), Sample(tuple(of_lengths), "s")
    ratio = peer.median / ours.median
    return Row(
        what="prepare, from lists of tokens",
        size=f"{in_words(num_rows)} rows",
        ours=str(ours),
        peer=f"{peer}, from a length column",
        ratio=ratio,
        target="≥ 0.5×",
        reached=ratio >= 0.5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a whole process took."""

    seconds: float
    peak_mb: float
    """Its peak resident set, without the processes that it starts."""
    anonymous_mb: float
    """The most anonymous memory of it and those together, looked at every 20 ms."""


def measured(command: list[str], output: Path) -> Measured:
    """Runs a command with an output folder, and removes the folder."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*command, str(output)], stdout=subprocess.DEVNULL, stderr=errors)
        peak_mb = anonymous_mb = 0.0
        while True:
            memory = memory_mb(process.pid)
            # Not ru_maxrss of the ended child, which begins at what this process had when it forked.
            peak_mb = max(peak_mb, memory.get("VmHWM", 0.0))
            of_children = sum(map(_anonymous_mb, _children(process.pid)))
            anonymous_mb = max(anonymous_mb, memory.get("RssAnon", 0.0) + of_children)
            try:
                process.wait(0.02)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - started
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{command[:3]} failed: {errors.read().decode(errors='replace')[-500:]}")
    shutil.rmtree(output)
    return Measured(seconds=seconds, peak_mb=peak_mb, anonymous_mb=anonymous_mb)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has just ended
        return []


def _anonymous_mb(pid: int) -> float:
    try:
        return memory_mb(pid).get("RssAnon", 0.0)
    except OSError:
        return 0.0
