"""Files that belong together are published together, and old ones stay until then; records are whole or not there."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.storage import AtomicFiles, Records, read_record, replace_bytes, write_record


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


KILLED = """
import os, sys
from pathlib import Path
from packhorse.storage import AtomicFiles
files = AtomicFiles([Path(path) for path in sys.argv[1:]], overwrite=True)
files.files[0].write(b"half")
files.files[0].flush()
print("open", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(
    pair: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", KILLED, *map(str, pair)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        partial = {path.name for path in pair[0].parent.iterdir()} - {path.name for path in pair}
        assert partial == {f".x.{kind}.{process.pid}.partial" for kind in ("bin", "idx")}
        write(pair)
        assert {path.name for path in pair[0].parent.iterdir()} == {*partial, "x.bin", "x.idx"}
        process.send_signal(signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "packhorse"):
        write(pair)
    assert sorted(pair[0].parent.iterdir()) == pair
    assert [path.read_text() for path in pair] == ["new", "new"]
    assert len([record for record in caplog.records if "which a killed process left" in record.message]) == 2


def test_a_single_file_is_never_missing_and_keeps_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")
    path.chmod(0o640)
    rename, there = os.replace, []

    def looks(source: Path, target: Path) -> None:
        there.append(path.exists())
        rename(source, target)

    monkeypatch.setattr(os, "replace", looks)
    replace_bytes(path, b"new")
    assert there == [True]
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_bytes(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b"half", b"0123456789abcdef\n[1, 2]"])
def test_a_damaged_record_counts_as_missing(tmp_path: Path, damage: bytes) -> None:
    assert read_record(tmp_path / "job") is None
    write_record(tmp_path / "job", [1, 2])
    assert read_record(tmp_path / "job") == [1, 2]
    (tmp_path / "job").write_bytes(damage)
    assert read_record(tmp_path / "job") is None


def test_records_are_read_in_the_order_of_tasks(tmp_path: Path) -> None:
    records = Records(tmp_path / "pass", save=json.dumps, load=json.loads)
    assert records.all() == []
    for task in (12, 0, 7):
        records.add(task, {"task": task})
    assert [result["task"] for result in records.all()] == [0, 7, 12]
    records.remove(7)
    records.remove(8)
    (tmp_path / "pass" / "000012").write_bytes(b"damaged")
    assert records.of(12) is None
    assert records.all() == [{"task": 0}]
