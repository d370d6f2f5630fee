"""The first start after an install: what is compiled, by whom, and what stays in the server's memory."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from packhorse.client import connect

MOST_KERNELS = 60
LAST = "fullest_bin"
"""A kernel that only packing on demand needs."""


@contextmanager
def served(corpus, folder, cache, wait_until):
    target, log = f"unix:{folder}/s", folder / "log.txt"
    command = [
        sys.executable,
        "-m",
        "packhorse.cli",
        "serve",
        "--data-root",
        str(corpus.root),
        "--listen",
        target,
    ]
    with log.open("a") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}
        )
    try:
        wait_until(Path(f"{folder}/s").exists, seconds=100)
        yield server.pid, target
        server.terminate()
        assert server.wait(60) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()
        Path(f"{folder}/s").unlink(missing_ok=True)


def first_bin(target):
    with connect(target) as client, client.stream_bins("rows", epoch=0) as stream:
        return next(iter(stream)).ids.tolist()


def compiled(cache):
    return {path.name for path in cache.rglob("*.nbc")}


def anonymous_mb(pid):
    """Memory of a process that no file is mapped to, without what it could have from others."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_serves_before_all_is_compiled_and_never_holds_the_compiler(corpus, tmp_path, wait_until):
    cache = tmp_path / "cache"
    cache.mkdir()
    with served(corpus, tmp_path, cache, wait_until) as (pid, target):
        cold = first_bin(target)
        assert not any(LAST in name for name in compiled(cache))
        wait_until(lambda: "all kernels are ready" in (tmp_path / "log.txt").read_text(), seconds=500)
        assert "requests are served meanwhile, slower" in (tmp_path / "log.txt").read_text()
        all_of_them = compiled(cache)
        assert len(all_of_them) <= MOST_KERNELS, sorted(all_of_them)
        before = anonymous_mb(pid)
    with served(corpus, tmp_path, cache, wait_until) as (pid, target):
        assert first_bin(target) == cold
        assert before < 1.3 * anonymous_mb(pid)
    assert compiled(cache) == all_of_them
