"""Preparing a Parquet file, as whole processes; beside seqpack.prepare on the same file."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Row, Sample
from workload import MAX_SEQ_LEN, PACKHORSE, Workspace, in_words, memory_mb

NOTE = (
    "prepare: `packhorse prepare` and `python -m seqpack.prepare` as whole processes on the same Parquet file, from "
    "start to exit; ours also checks, sorts and checksums. Peak memory is the kernel's VmHWM, mapped pages "
    "included. seqpack runs once, between runs of ours."
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
    return rows


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
