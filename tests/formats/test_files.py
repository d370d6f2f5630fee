"""Which files a path names, in which order, and stamps of files."""

import os

import pytest

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import find_files


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.parquet",
        "a/z.parquet",
        "a.parquet",
        "a/deep/er.parquet",
        "a/notes.txt",
        "c.parquet/inside.parquet",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(folder, found):
    return [str(path.relative_to(folder)) for path in found]


def test_files_of_folders_and_patterns_come_sorted_as_strings(folder):
    every = ["a.parquet", "a/deep/er.parquet", "a/z.parquet", "b.parquet", "c.parquet/inside.parquet"]
    for source in (folder, str(folder), folder / "**" / "*.parquet"):
        assert names(folder, find_files(source, ".parquet")) == every
    assert names(folder, find_files(folder / "*.parquet", ".parquet")) == ["a.parquet", "b.parquet"]
    assert names(folder, find_files(folder / "a" / "notes.txt", ".parquet")) == ["a/notes.txt"]


def test_a_file_whose_name_looks_like_a_pattern(folder):
    (folder / "[x].parquet").touch()
    assert names(folder, find_files(folder / "[x].parquet", ".parquet")) == ["[x].parquet"]


def test_nothing_there(folder):
    for source, message in (
        (folder / "none", "none does not exist"),
        (folder / "*.none", "no file matches"),
        (folder / "a" / "deep", r"hold no \*\.arrow file"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            find_files(source, ".arrow")


def test_stamps(folder):
    path = folder / "b.parquet"
    stamp = FileStamp.of(path)
    stamp.check(path)
    os.utime(path, ns=(0, stamp.modified_ns + 1))
    with pytest.raises(ValueError, match=r"b\.parquet has been replaced since it was first opened"):
        stamp.check(path)
    path.write_text("x")
    os.utime(path, ns=(0, stamp.modified_ns))
    with pytest.raises(ValueError, match="replaced"):
        stamp.check(path)
    path.unlink()
    assert not stamp.holds(path)
    with pytest.raises(FileNotFoundError):
        stamp.check(path)
