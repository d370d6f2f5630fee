"""Folders are written whole or not at all, and the old one is there until the new one is."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.dataset import PreparedDatasetError, locked, open_prepared, written_whole
from packhorse.dataset.output import replacing
from packhorse.dataset.output.refusals import refuse_holding, refuse_output
from packhorse.prepare import prepare

MANIFEST = '{"format_version": 1, "checksums": {}, "digest": "%s"}'


def dataset(folder: Path, digest: str) -> Path:
    """What counts as a prepared folder, in one file."""
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(MANIFEST % digest)
    return folder


def digest_of(folder: Path) -> str:
    return (folder / "manifest.json").read_text().split('"')[-2]


def cannot_exchange(new: Path, old: Path) -> None:
    raise OSError(errno.EINVAL, "this file system cannot")


def test_nothing_is_at_the_output_until_all_is_written(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with written_whole(output) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "file").write_text("new")
        assert partial.parent == output.parent
        assert partial.name.startswith(".")
        assert not output.exists()
    assert (output / "sub" / "file").read_text() == "new"
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_nothing_is_left_and_the_old_stays(tmp_path: Path, error: type[BaseException]) -> None:
    output = dataset(tmp_path / "out", "old")

    def write_half() -> None:
        with written_whole(output, overwrite=True) as partial:
            dataset(partial, "new")
            raise error

    with pytest.raises(error):
        write_half()
    assert list(tmp_path.iterdir()) == [output]
    assert digest_of(output) == "old"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_new_one_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(replacing, "_exchange", cannot_exchange)
    output = dataset(tmp_path / "out", "old")
    (output / "counts.json").touch()
    with pytest.raises(FileExistsError, match=r"out exists.*overwrite=True"), written_whole(output):
        pass
    with written_whole(output, overwrite=True) as partial:
        dataset(partial, "new")
    assert digest_of(output) == "new"
    assert [path.name for path in output.iterdir()] == ["manifest.json"]
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken disk"), KeyboardInterrupt()])
def test_the_old_one_is_put_back_when_the_second_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(replacing, "_exchange", cannot_exchange)
    output = dataset(tmp_path / "out", "old")
    rename = Path.rename

    def fails_for_the_new_one(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            assert not output.exists()
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(type(error)), written_whole(output, overwrite=True) as partial:
        dataset(partial, "new")
    assert digest_of(output) == "old"
    assert list(tmp_path.iterdir()) == [output]


CRASHED = """
import os, sys
from pathlib import Path
from packhorse.dataset import written_whole
from packhorse.dataset.output import replacing

def cannot(new, old):
    raise OSError(22, "this file system cannot")

def rename(path, target):
    global left
    if not left:
        os._exit(9)
    left -= 1
    return done(path, target)

left, done = int(sys.argv[2]), Path.rename
replacing._exchange, Path.rename = cannot, rename
with written_whole(Path(sys.argv[1]), overwrite=True) as partial:
    (partial / "manifest.json").write_text('{"format_version": 1, "checksums": {}, "digest": "new"}')
"""
"""A process that goes down when so many of the three renames are done."""


@pytest.mark.parametrize(("renames", "there"), [(1, "old"), (2, "new")])
def test_what_a_crash_between_renames_left_is_mended_by_the_next_write(
    tmp_path: Path, renames: int, there: str
) -> None:
    output = dataset(tmp_path / "out", "old")
    done = subprocess.run([sys.executable, "-c", CRASHED, str(output), str(renames)])
    assert done.returncode == 9
    assert output.exists() == (there == "new")
    if there == "old":
        with pytest.raises(
            PreparedDatasetError, match=r"was being replaced when .* `mv \.out\.replaced out` there gives"
        ):
            open_prepared(output)
    with pytest.raises(FileExistsError, match="out exists already"), written_whole(output):
        pass
    assert digest_of(output) == there
    with written_whole(output, overwrite=True) as partial:
        dataset(partial, "newest")
    assert digest_of(output) == "newest"
    assert not (tmp_path / ".out.replaced").exists()


def test_a_folder_of_that_name_that_is_no_dataset_stays(tmp_path: Path) -> None:
    (tmp_path / ".out.replaced").mkdir()
    with written_whole(tmp_path / "out") as partial:
        dataset(partial, "new")
    assert (tmp_path / ".out.replaced").is_dir()


def test_where_folders_can_be_exchanged_there_is_always_one(tmp_path: Path) -> None:
    new, old = dataset(tmp_path / "new", "new"), dataset(tmp_path / "old", "old")
    try:
        replacing._exchange(new, old)
    except OSError as error:
        pytest.skip(f"cannot exchange here: {error}")
    assert (digest_of(old), digest_of(new)) == ("new", "old")
    missing, done = [], threading.Event()

    def watch() -> None:
        while not done.is_set():
            if not os.path.exists(old / "manifest.json"):
                missing.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(50):
        with written_whole(old, overwrite=True) as partial:
            dataset(partial, str(number))
    done.set()
    watcher.join()
    assert digest_of(old) == "49"
    assert not missing


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_came_to_the_output_meanwhile_is_not_destroyed(tmp_path: Path, overwrite: bool) -> None:
    output = tmp_path / "out"

    def write() -> None:
        with written_whole(output, overwrite=overwrite) as partial:
            dataset(partial, "new")
            dataset(output, "theirs")
            (output / "notes.txt").write_text("precious")

    with pytest.raises(FileExistsError, match=r"holds 'notes\.txt'"):
        write()
    assert (output / "notes.txt").read_text() == "precious"
    assert digest_of(output) == "theirs"
    assert list(tmp_path.iterdir()) == [output]


def test_another_dataset_that_came_meanwhile_stays_without_overwrite(tmp_path: Path) -> None:
    def write() -> None:
        with written_whole(tmp_path / "out") as partial:
            dataset(partial, "new")
            dataset(tmp_path / "out", "theirs")

    with pytest.raises(FileExistsError, match=r"overwrite=True to replace it"):
        write()
    assert digest_of(tmp_path / "out") == "theirs"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_in_one_line(tmp_path: Path, number: int) -> None:
    def write() -> None:
        with written_whole(tmp_path / "out") as partial:
            (partial / "sub").mkdir()
            (partial / "sub" / "counts.json").write_bytes(bytes(1 << 20))
            raise OSError(number, "full")

    said = r"too little space: out needs more than [0-9,]+ bytes: the next file did not fit into the [0-9,]+ that are"
    with pytest.raises(OSError, match=said) as caught:
        write()
    assert str(tmp_path) in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_signals_are_held_while_leftovers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[set[int]] = []
    remove = replacing.shutil.rmtree

    def looking(*arguments: object, **options: object) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        remove(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(replacing.shutil, "rmtree", looking)
    with pytest.raises(ValueError), written_whole(tmp_path / "out"):
        raise ValueError
    assert blocked
    assert {signal.SIGINT, signal.SIGTERM} <= blocked[0]
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_folder_to_write_into_that_exists_stays(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="is there already"), written_whole(tmp_path / "out", partial=partial):
        raise AssertionError("written into")
    assert [path.name for path in partial.iterdir()] == ["notes.txt"]


def _foreign_file(folder: Path) -> None:
    (folder / "notes.txt").touch()


def _hidden_file(folder: Path) -> None:
    (folder / ".git").mkdir()


def _folder_under_our_name(folder: Path) -> None:
    (folder / "starts.npy").mkdir()


def _link_under_our_name(folder: Path) -> None:
    (folder / "starts.npy").symlink_to(folder / "pools.npy")


def _pools_beside_our_manifest(folder: Path) -> None:
    (folder / "pools").mkdir()


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _fifo_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")


def _other_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"name": "my app"}')


def _deep_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def _huge_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 1 << 40)


OBSTACLES: dict[Callable[[Path], None], str] = {
    _foreign_file: "holds 'notes.txt'",
    _hidden_file: "holds '.git'",
    _folder_under_our_name: "holds 'starts.npy'",
    _link_under_our_name: "holds 'starts.npy'",
    _pools_beside_our_manifest: "holds 'pools'",
    _no_manifest: "no manifest.json",
    _fifo_manifest: "no manifest.json",
    _huge_manifest: "no manifest.json",
    _other_manifest: "not a dataset's",
    _deep_manifest: "not a dataset's",
}


def test_a_dataset_is_replaceable_when_asked(prepared: Path, tmp_path: Path) -> None:
    refuse_output(tmp_path / "none", overwrite=False)
    refuse_output(prepared, overwrite=True)
    with pytest.raises(FileExistsError, match="overwrite=True to replace it"):
        refuse_output(prepared, overwrite=False)


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_not(obstacle: Callable[[Path], None], overwrite: bool, prepared: Path) -> None:
    obstacle(prepared)
    with pytest.raises(FileExistsError, match=OBSTACLES[obstacle]) as caught:
        refuse_output(prepared, overwrite=overwrite)
    assert "another output" in str(caught.value)


def test_files_empty_folders_and_links_to_nothing_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "empty", "link"):
        with pytest.raises(FileExistsError, match="another output"):
            refuse_output(tmp_path / name, overwrite=True)


def test_seqpack_folders_are_with_their_pools_alone(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    prepare(table, length_column="n", max_seq_len=64, output=folder, format="seqpack")
    refuse_output(folder, overwrite=True)
    for name in ("pools/notes.npy", "pools/3.txt", "pools.npy"):
        copy = Path(shutil.copytree(folder, tmp_path / name.replace("/", "-")))
        (copy / name).touch()
        with pytest.raises(FileExistsError, match="holds 'pools"):
            refuse_output(copy, overwrite=True)


def test_nothing_that_holds_an_input_or_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "in").mkdir(parents=True)
    file = tmp_path / "data" / "in" / "x.parquet"
    file.touch()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "x-link.parquet").symlink_to(file)
    outputs = (file, file.parent, tmp_path / "data", tmp_path, tmp_path / "link" / "in", tmp_path / "link")
    for output in outputs:
        for given in (file, tmp_path / "x-link.parquet", tmp_path / "link" / "in" / "x.parquet"):
            with pytest.raises(FileExistsError, match=r"the input .*give another output"):
                refuse_holding(output, [given])
    refuse_holding(tmp_path / "data" / "in" / "out", [file, file.parent])
    refuse_holding(tmp_path / "out", [file])
    monkeypatch.chdir(tmp_path / "data" / "in")
    for name in (".", "..", "../..", str(tmp_path / "link")):
        with pytest.raises(FileExistsError, match="the working directory"):
            refuse_holding(Path(name), [])


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
