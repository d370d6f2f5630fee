"""Files that change are read again; wrong ones leave in use what was there, and the log says so once."""

import logging
from pathlib import Path

import pytest

from packhorse.storage import Watched, stamp_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_it_is_read_only_when_it_changes(path: Path) -> None:
    reads = []

    def read() -> int:
        reads.append(path.read_text())
        return int(reads[-1])

    number = Watched("the number", [path, path.with_name("absent")], read)
    assert (number.get(), number.get()) == (1, 1)
    path.write_text("22")
    assert (number.get(), number.get()) == (22, 22)
    path.with_name("absent").touch()
    assert number.get() == 22
    assert reads == ["1", "22", "22"]


def test_a_wrong_file_changes_nothing_and_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    number = Watched("the number", [path], lambda: int(path.read_text()))
    with caplog.at_level(logging.INFO, "packhorse"):
        path.write_text("none")
        assert (number.get(), number.get()) == (1, 1)
        assert "invalid literal" in number.trouble
        path.unlink()
        assert number.get() == 1
        assert "No such file" in number.trouble
        path.write_text("333")
        assert (number.get(), number.trouble) == (333, "")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]


def test_wrong_content_is_still_trouble_after_the_file_system_did_not_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = Watched("the number", [path], lambda: int(path.read_text()))
    path.write_text("none")
    assert "invalid literal" in number.trouble

    def hang(*_: object) -> None:
        raise TimeoutError("no answer")

    with monkeypatch.context() as hanging:
        hanging.setattr("packhorse.storage.watched.look_at", hang)
        assert "no answer" in number.trouble
    assert (number.get(), "invalid literal" in number.trouble) == (1, True)
    path.write_text("333")
    assert (number.get(), number.trouble) == (333, "")


def test_the_first_reading_must_do(path: Path) -> None:
    path.write_text("none")
    with pytest.raises(ValueError, match="invalid literal"):
        Watched("the number", [path], lambda: int(path.read_text()))


def test_a_change_while_it_is_read_is_not_missed(path: Path) -> None:
    def read() -> int:
        number = int(path.read_text())
        if number == 1:
            path.write_text("4444")
        return number

    assert Watched("the number", [path], read).get() == 4444


def test_a_missing_file_has_no_stamp(path: Path) -> None:
    assert stamp_of(path) is not None
    path.unlink()
    assert stamp_of(path) is None
