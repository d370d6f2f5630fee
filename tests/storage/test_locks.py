"""One holder at a time, named; released by whoever ends, however it ends."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from packhorse.storage import LockHeldError, hold_lock, locks, try_lock

HOLDER = """
import sys
from pathlib import Path
from packhorse.storage import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError) as caught, hold_lock(path, wait_seconds=0):
            pass
        assert caught.value.holder.startswith(f"process {process.pid} on ")
        process.kill()
    with hold_lock(path, wait_seconds=0):
        assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_who_waits_gets_it(tmp_path: Path) -> None:
    order = []

    def wait() -> None:
        with hold_lock(tmp_path):  # a folder, in which nothing is written
            order.append("second")

    with hold_lock(tmp_path):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(3 * locks._POLL_SECONDS)
        order.append("first")
        with pytest.raises(LockHeldError, match="by another process"), hold_lock(tmp_path, wait_seconds=0.01):
            pass
    thread.join(60)
    assert order == ["first", "second"]
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "work" / "lock"
    flock, calls = locks.fcntl.flock, []

    def removed_first(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            shutil.rmtree(path.parent)
        flock(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", removed_first)
    with hold_lock(path):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert len(calls) == 2


def test_an_error_within_releases_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold_lock(tmp_path / "lock"):
        raise KeyError
    with hold_lock(tmp_path / "lock", wait_seconds=0):
        pass


def test_shared_locks_are_held_by_several(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.touch()
    with path.open("rb") as one, path.open("rb") as another, path.open("rb") as remover:
        assert try_lock(one, shared=True)
        assert try_lock(another, shared=True)
        assert not try_lock(remover)
        one.close()
        another.close()
        assert try_lock(remover)
