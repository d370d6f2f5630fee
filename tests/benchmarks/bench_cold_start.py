"""The first start after an install, and a pod's: seconds to the first bin and to SERVING, beside the next start."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Row, Sample
from workload import PACKHORSE, Workspace, in_words, memory_mb

from packhorse.client import connect

NOTE = (
    "cold start: from `packhorse serve` with an empty NUMBA_CACHE_DIR to the first bin in a client's hands, and to the "
    "line that it listens, which follows health's SERVING; and once nothing is compiled any more, what the server "
    "holds (RssAnon). Beside it the same server's next start. A pod: the same with kernels that another process has "
    "compiled as the Dockerfile does, for every processor with AVX2, and without bytecode being written; pulling the "
    "image is left out."
)
_OF_IMAGE = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "", "PYTHONDONTWRITEBYTECODE": "1"}
_COMPILING = "from packhorse.server.base.kernels import compile_kernels; compile_kernels()"


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
    return [*rows, _row_of_pod(root, f"bench-{size}", in_words(size))]


def _row_of_pod(root: Path, dataset: str, sequences: str) -> Row:
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | _OF_IMAGE | {"NUMBA_CACHE_DIR": cache}
        subprocess.run([sys.executable, "-c", _COMPILING], check=True, env=environment)
        ready = [_started(root, dataset, Path(cache), is_cold=False, **_OF_IMAGE)[1] for _ in range(3)]
    return Row(
        what="SERVING of a new pod",
        size=f"{sequences} sequences",
        ours=str(Sample(tuple(ready), "s")),
        target="< 5 s",
        reached=max(ready) < 5,
    )


def _started(root: Path, dataset: str, cache: Path, *, is_cold: bool, **variables: str) -> tuple[float, float, float]:
    """Seconds to the first bin and to SERVING, and megabytes in the end."""
    socket, log = cache / "socket", cache / "log"
    command = [PACKHORSE, "serve", "--data-root", str(root), "--listen", f"unix:{socket}"]
    started = time.perf_counter()
    with log.open("w") as output:
        environment = os.environ | variables | {"NUMBA_CACHE_DIR": str(cache)}
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
