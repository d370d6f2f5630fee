"""`prepare --overwrite` destroys nothing that is not a prepared dataset."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """home/data/in/x.parquet, with notes beside each folder."""
    folder = tmp_path / "home" / "data" / "in"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"n": [3, 1, 2]}), folder / "x.parquet")
    for parent in (folder, folder.parent, folder.parent.parent):
        (parent / "notes.txt").write_text("precious")
    return folder / "x.parquet"


def everything_below(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(source: Path | str, output: Path | str, said: str = "another output", **arguments: Any) -> None:
    with pytest.raises(FileExistsError, match=said) as caught:
        prepare(source, **{"length_column": "n", "max_seq_len": 8, "output": output, "overwrite": True, **arguments})
    assert "another output" in str(caught.value)


OUTPUTS: dict[str, Callable[[Path], Path]] = {
    "the input": lambda file: file,
    "its folder": lambda file: file.parent,
    "its folder's folder": lambda file: file.parent.parent,
    "far above it": lambda file: file.parent.parent.parent,
    "a file beside it": lambda file: file.parent / "notes.txt",
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("form", ["file", "folder", "pattern"])
def test_inputs_and_foreign_files_stay(tmp_path: Path, corpus_file: Path, output: str, form: str) -> None:
    before = everything_below(tmp_path)
    source = {"file": corpus_file, "folder": corpus_file.parent, "pattern": corpus_file.with_name("*.parquet")}[form]
    refused(source, OUTPUTS[output](corpus_file))
    assert everything_below(tmp_path) == before


def test_the_working_directory_stays(tmp_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(corpus_file, length_column="n", max_seq_len=8, output=tmp_path / "sets" / "one")
    before = everything_below(tmp_path)
    monkeypatch.chdir(tmp_path / "sets" / "one")
    for output in (".", "..", tmp_path / "sets" / "one"):
        refused(corpus_file, output)
    assert everything_below(tmp_path) == before


def test_an_input_inside_a_dataset_stays(tmp_path: Path, corpus_file: Path) -> None:
    """Even where every name in the folder is one of ours."""
    folder = tmp_path / "set"
    prepare(corpus_file, length_column="n", max_seq_len=8, output=folder)
    corpus_file.rename(folder / "starts.npy")
    (tmp_path / "link").symlink_to(folder)
    before = everything_below(folder)
    for output in (folder, tmp_path / "link"):
        refused(folder / "starts.npy", output, "holds the input")
        refused(tmp_path / "link" / "starts.npy", output, "holds the input")
    assert everything_below(folder) == before


def test_tokens_beside_an_index_count_as_input(tmp_path: Path, corpus_file: Path) -> None:
    folder = tmp_path / "set"
    prepare(corpus_file, length_column="n", max_seq_len=8, output=folder)
    with MegatronWriter(tmp_path / "x", vocab_size=10) as writer:
        writer.append([1, 2])
    os.rename(tmp_path / "x.bin", folder / "starts.npy")
    (tmp_path / "x.bin").symlink_to(folder / "starts.npy")
    refused(tmp_path / "x.idx", folder, "holds the input", length_column=None)


@pytest.mark.parametrize("layout", ["packhorse", "seqpack"])
def test_either_layout_replaces_either(tmp_path: Path, corpus_file: Path, layout: str) -> None:
    arguments: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": tmp_path / "set"}
    prepare(corpus_file, format=layout, **arguments)
    prepare(corpus_file, format="seqpack", overwrite=True, **arguments)
    assert (tmp_path / "set" / "pools").is_dir()
    prepare(corpus_file, overwrite=True, **arguments)
    assert open_prepared(tmp_path / "set").manifest.num_sequences == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "set"]


def test_a_dataset_of_an_older_release_is_replaced(tmp_path: Path, corpus_file: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "manifest.json").write_text('{"format_version": 0, "checksums": {}, "digest": ""}')
    prepare(corpus_file, length_column="n", max_seq_len=8, output=tmp_path / "set", overwrite=True)
    open_prepared(tmp_path / "set")
