"""The demo, stopped or failing: its server and ranks end, and nothing is left behind."""

import re
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def started(tmp_path):
    command = [sys.executable, "-m", "packhorse.cli", "demo", "--output", "out", "--documents", "400"]
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def of_session(number):
    """Processes of a session that run."""
    listed = subprocess.run(["ps", "ww", "-s", str(number), "-o", "pid=,stat=,args="], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if line.split()[1][0] != "Z"]


def trains(demo):
    """Reads on until the ranks train."""
    return any("server on" in line for line in demo.stdout)


def test_a_stopped_demo_leaves_nothing_behind(tmp_path, wait_until):
    demo = started(tmp_path)
    assert trains(demo)
    wait_until(lambda: sum("spawn_main" in line for line in of_session(demo.pid)) >= 2, seconds=200)
    demo.send_signal(signal.SIGTERM)
    _, errors = demo.communicate(timeout=200)
    assert demo.returncode == 143
    assert "Stopped by SIGTERM: its server and its ranks have ended; what it made is in out" in errors
    assert "leaked" not in errors
    assert "Traceback" not in errors
    wait_until(lambda: not of_session(demo.pid), seconds=60)


def test_a_failing_demo_leaves_no_semaphores(tmp_path, wait_until):
    """Its ranks find no tokens."""
    demo = started(tmp_path)
    assert trains(demo)
    (tmp_path / "out" / "corpus.idx").unlink()
    _, errors = demo.communicate(timeout=400)
    assert demo.returncode == 1
    assert re.search("rank [01] failed", errors)
    assert "leaked" not in errors
    wait_until(lambda: not of_session(demo.pid), seconds=60)
