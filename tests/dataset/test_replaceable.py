"""What `--overwrite` replaces, and everything that it does not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.dataset.replaceable import refuse_holding, refuse_output
from packhorse.prepare import prepare


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
    with pytest.raises(FileExistsError, match="--overwrite to replace it"):
        refuse_output(prepared, overwrite=False)


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_not(obstacle: Callable[[Path], None], overwrite: bool, prepared: Path) -> None:
    obstacle(prepared)
    with pytest.raises(FileExistsError, match=OBSTACLES[obstacle]) as caught:
        refuse_output(prepared, overwrite=overwrite)
    assert "another --output" in str(caught.value)


def test_files_empty_folders_and_links_to_nothing_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "empty", "link"):
        with pytest.raises(FileExistsError, match="another --output"):
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
            with pytest.raises(FileExistsError, match=r"the input .*give another --output"):
                refuse_holding(output, [given])
    refuse_holding(tmp_path / "data" / "in" / "out", [file, file.parent])
    refuse_holding(tmp_path / "out", [file])
    monkeypatch.chdir(tmp_path / "data" / "in")
    for name in (".", "..", "../..", str(tmp_path / "link")):
        with pytest.raises(FileExistsError, match="the working directory"):
            refuse_holding(Path(name), [])
