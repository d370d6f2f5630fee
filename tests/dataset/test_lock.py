"""The lock of a folder to be: one holder at a time, named; let go of by whoever ends."""

import os
from pathlib import Path

import pytest

from packhorse.dataset import locked


def test_the_holder_is_named_and_the_next_one_gets_it(tmp_path: Path) -> None:
    with locked(tmp_path / "out"):
        with pytest.raises(
            BlockingIOError, match=rf"out is being prepared already, by process {os.getpid()} on .* since 2"
        ):
            locked(tmp_path / "out").__enter__()
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path / "out") as work:
        (work / "half").touch()
    assert work.exists()
    with locked(tmp_path / "out"):
        (work / "half").unlink()
    assert not list(tmp_path.iterdir())


def test_a_link_has_the_lock_of_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "set")
    with locked(tmp_path / "link") as work:
        assert work == tmp_path / "deep" / ".set.work"
        with pytest.raises(BlockingIOError):
            locked(tmp_path / "deep" / "set").__enter__()
