"""Preparing a Parquet file, as whole processes; beside seqpack.prepare on the same file."""

import shutil
import subprocess
import sys
import tempfile
import time
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
    "included. seqpack runs once, between runs of ours. Lists of tokens have their "
    "lengths read from repetition levels."
)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_rows = workspace.sizes.medium
    source = workspace.parquet(num_rows)
    source.read_bytes()  # into the page cache, for both
    rows = []
    for what, columns in (
        ("prepare", ["--length-column", "length"]),
        ("prepare, with an id column", ["--length-column", "length", "--id-column", "id"]),
    ):
        arguments = ["--input", str(source), *columns, "--max-seq-len", str(MAX_SEQ_LEN), "--output"]
        before = _process([PACKHORSE, "prepare", *arguments], workspace.root / "ours")
        peer_seconds, peer_peak = _process(
            [sys.executable, "-m", "seqpack.prepare", *arguments], workspace.root / "theirs"
        )
        after = [_process([PACKHORSE, "prepare", *arguments], workspace.root / "ours") for _ in range(2)]
        ours = Sample(tuple(seconds for seconds, _ in (before, *after)), "s")
        our_peak = max(peak for _, peak in (before, *after))
        ratio = peer_seconds / ours.median
        size = f"{in_words(num_rows)} rows"
        rows += [
            Row(
                what=what,
                size=size,
                ours=str(ours),
                peer=f"{Sample((peer_seconds,), 's')}, seqpack.prepare",
                ratio=ratio,
                target="≥ 10×",
                reached=ratio >= 10,
            ),
            Row(
                what=f"{what}: peak memory",
                size=size,
                ours=f"{our_peak:.0f} MB",
                peer=f"{peer_peak:,.0f} MB, seqpack.prepare",
                ratio=peer_peak / our_peak,
            ),
        ]
    return [*rows, _of_lists(workspace)]


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
            seconds.append(_process(command, workspace.root / "ours")[0])
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


def _process(command: list[str], output: Path) -> tuple[float, float]:
    """Runs a command with an output folder; returns its seconds and its peak resident set in MB."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*command, str(output)], stdout=subprocess.DEVNULL, stderr=errors)
        peak_mb = 0.0
        while True:
            # Not ru_maxrss of the ended child, which begins at what this process had when it forked.
            peak_mb = max(peak_mb, memory_mb(process.pid).get("VmHWM", 0.0))
            try:
                process.wait(0.01)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - started
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{command[:3]} failed: {errors.read().decode(errors='replace')[-500:]}")
    shutil.rmtree(output)
    return seconds, peak_mb
