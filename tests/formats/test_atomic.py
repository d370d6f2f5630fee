"""Files that belong together are published together, and old ones stay until then."""

import os
from pathlib import Path

import pytest

from packhorse.formats.atomic import AtomicFiles


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two files of an older run."""
    paths = [tmp_path / "x.bin", tmp_path / "x.idx"]
    for path in paths:
        path.write_text("old")
    return paths


def write(paths: list[Path]) -> None:
    with AtomicFiles(paths, overwrite=True) as files:
        for file in files.files:
            file.write(b"new")


@pytest.mark.parametrize("error", [OSError(5, "broken disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_old_files_are_put_back_when_a_rename_fails(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    rename, calls = os.replace, []

    def fails(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(type(error)):
        write(pair)
    assert sorted(pair[0].parent.iterdir()) == pair
    assert [path.read_text() for path in pair] == ["old", "old"]


def test_new_files_take_their_place(pair: list[Path]) -> None:
    write(pair)
    assert sorted(pair[0].parent.iterdir()) == pair
    assert [path.read_text() for path in pair] == ["new", "new"]


def test_a_folder_is_never_replaced(pair: list[Path], tmp_path: Path) -> None:
    (tmp_path / "y.idx").mkdir()
    (tmp_path / "y.idx" / "notes.txt").touch()
    with pytest.raises(IsADirectoryError, match="choose another output"):
        write([pair[0], tmp_path / "y.idx"])
    assert pair[0].read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx", "y.idx"]
