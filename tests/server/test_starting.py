"""What a server says while it starts, and when it is stopped."""

import asyncio
import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from packhorse.client import connect
from packhorse.server.app import _probe

SLOW = """
import sys, time
from packhorse.server import app
before_serving = app.WarmUp.before_serving
def slow(warm_up):
    while not __import__("os").path.exists(sys.argv[-1]):
        time.sleep(0.02)
    before_serving(warm_up)
app.WarmUp.before_serving = slow
from packhorse.cli import main
go_on = sys.argv[-1]
main(["serve", "--data-root", sys.argv[1], "--listen", sys.argv[2]])
"""


def test_health_answers_while_kernels_are_compiled(corpus, tmp_path, wait_until):
    target, go_on, log = f"unix:{tmp_path}/s", tmp_path / "go-on", tmp_path / "log.txt"

    def health():
        command = [sys.executable, "-m", "packhorse.cli", "health", "--target", target]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    with log.open("w") as output:
        command = [sys.executable, "-c", SLOW, str(corpus.root), target, str(go_on)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: (
                "kernels ready: they are compiled once after an install, in seconds, and else read" in log.read_text()
            ),
            seconds=60,
        )
        assert health().stdout == f"{target}: NOT_SERVING\n"
        assert "listening on" not in log.read_text()
        go_on.touch()
        wait_until(lambda: "listening on" in log.read_text(), seconds=100)
        assert health().stdout == f"{target}: SERVING\n"
    finally:
        server.kill()
        server.wait()


def test_a_server_serves_where_stdout_takes_nothing(corpus, tmp_path, wait_until):
    log = tmp_path / "log.txt"
    target = f"unix:{tmp_path}/s"
    with log.open("w") as stderr, Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "packhorse.cli", "serve", "--data-root", str(corpus.root), "--listen", target]
        server = subprocess.Popen(command, stdout=full, stderr=stderr)
    try:
        wait_until(lambda: f"listening address={target}" in log.read_text(), seconds=100)
        with connect(target) as client:
            assert client.get_dataset("few").num_sequences == 7
        server.terminate()
        assert server.wait(30) == 0
        assert "stdout takes nothing: No space left on device" in log.read_text()
    finally:
        server.kill()


def test_a_signal_ends_a_server_that_still_compiles(corpus, tmp_path, wait_until):
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        command = [sys.executable, "-c", SLOW, str(corpus.root), f"unix:{tmp_path}/s", str(tmp_path / "never")]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: (
                "kernels ready: they are compiled once after an install, in seconds, and else read" in log.read_text()
            ),
            seconds=60,
        )
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()


def test_a_client_that_vanishes_costs_no_traceback(running_server):
    code = """
import os, sys
from packhorse.client import connect
stream = connect(sys.argv[1]).stream_bins("rows")
next(stream)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, running_server.target], check=True, timeout=60)
    subprocess.run(
        [sys.executable, "-m", "packhorse.cli", "health", "--target", running_server.target], check=True, timeout=60
    )
    assert "Traceback" not in running_server.log()


class Busy:
    """A lane that answers nobody before it is closed."""

    def __init__(self):
        self.asked = []

    def submit(self, work):
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def test_a_drain_that_ends_a_probe_leaves_no_trace(caplog):
    async def drain():
        lanes = (Busy(), Busy())
        probing = asyncio.create_task(_probe(lanes, None))
        await asyncio.sleep(0.01)
        probing.cancel()
        for lane in lanes:
            for future in lane.asked:
                future.cancel()
        del future
        with suppress(asyncio.CancelledError):
            await probing
        assert [len(lane.asked) for lane in lanes] == [1, 1]

    asyncio.run(drain())
    gc.collect()
    assert not caplog.records
