"""Commands that tests fork are told apart, also if the system gives the pid of one that ended to the next."""

import os

from tests import warm

SAME_PID = """
import sys

for number, _ in enumerate(sys.stdin):
    print("started 7", flush=True)
    if number == 0:
        print("ended 7 3", flush=True)
"""
"""Stands for the process that forks: of two commands with one pid, the first ends and the second runs on."""


def test_a_pid_that_comes_again_is_another_command(tmp_path, monkeypatch):
    script = tmp_path / "forks.py"
    script.write_text(SAME_PID)
    monkeypatch.setattr(warm, "__file__", str(script))
    forks = warm.Warm()
    try:
        options = {"out": os.devnull, "err": os.devnull, "environment": {}, "folder": tmp_path}
        first = forks.start(**options)
        assert first.wait(20) == 3
        second = forks.start(**options)
        assert second.pid == first.pid
        assert second.poll() is None
        assert first.poll() == 3  # so a signal for it reaches nobody
    finally:
        forks.close()
