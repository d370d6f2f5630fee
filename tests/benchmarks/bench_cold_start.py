"""The first start after an install: seconds to the first bin and to SERVING, beside a start that finds all compiled."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from harness import Row, Sample
from workload import PACKHORSE, Workspace, in_words, memory_mb

from packhorse.client import connect

NOTE = (
    "cold start: from `packhorse serve` with an empty NUMBA_CACHE_DIR to the first bin in a client's hands, and to the "
    "line that it listens, which follows health's SERVING; and once nothing is compiled any more, what the server "
    "holds (RssAnon). Beside it the same server's next start."
)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    size = workspace.sizes.small
    root = workspace.root_of(size)
    colds, warms = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            colds.append(_started(root, f"bench-{size}", Path(cache), is_cold=True))
            warms.append(_started(root, f"bench-{size}", Path(cache), is_cold=False))
    rows = []
    for index, (what, unit, target, most) in enumerate(
        (
            ("first bin after an install", "s", "< 5 s", 5.0),
            ("SERVING after an install", "s", "< 10 s", 10.0),
            ("memory once all is compiled", "MB", "≥ 0.9× (what a warm server holds)", None),
        )
    ):
        cold, warm = (Sample(tuple(each[index] for each in every), unit) for every in (colds, warms))
        ratio = warm.median / cold.median
        rows.append(
            Row(
                what=what,
                size=f"{in_words(size)} sequences",
                ours=str(cold),
                peer=f"{warm}, packhorse's next start",
                ratio=ratio,
                target=target,
                reached=ratio >= 0.9 if most is None else cold.median < most,
            )
        )
    return rows


def _started(root: Path, dataset: str, cache: Path, *, is_cold: bool) -> tuple[float, float, float]:
    """Seconds to the first bin and to SERVING, and megabytes in the end."""
    socket, log = cache / "socket", cache / "log"
    command = [PACKHORSE, "serve", "--data-root", str(root), "--listen", f"unix:{socket}"]
    started = time.perf_counter()
    with log.open("w") as output:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        while not socket.exists():
            time.sleep(0.01)
        with connect(f"unix:{socket}") as client:
            stream = client.stream_bins(dataset, epoch=0, seed=7)
            next(stream)
            first_bin = time.perf_counter() - started
            stream.close()
        _wait_for(log, "listening on")
        serving = time.perf_counter() - started
        if is_cold:
            _wait_for(log, "all kernels are ready")
        return first_bin, serving, memory_mb(process.pid)["RssAnon"]
    finally:
        process.terminate()
        process.wait()
        socket.unlink(missing_ok=True)


def _wait_for(log: Path, words: str) -> None:
    while words not in log.read_text():
        time.sleep(0.01)
