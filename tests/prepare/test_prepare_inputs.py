"""`prepare` of several inputs: one after the other, in the order given, each file once."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.cli.prepare import command
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter
from packhorse.prepare import load_prepared

COMMON: dict[str, Any] = {"length_column": "n", "max_seq_len": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b.parquet (2 rows), a.parquet (3 rows) and deep/ with c.parquet and d.parquet (1 row each)."""
    (tmp_path / "deep").mkdir()
    for name, lengths in (("b", [1, 2]), ("a", [3, 4, 5]), ("deep/d", [7]), ("deep/c", [6])):
        columns = {"n": lengths, "id": np.array(lengths) + 100}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    return tmp_path


def ids_by_length(path: Path) -> dict[int, list[int]]:
    return {length: ids.tolist() for length, ids in load_prepared(path)[3].items()}


def test_ids_are_rows_over_all_inputs_in_the_order_given(folder: Path) -> None:
    inputs = [folder / "b.parquet", folder / "deep", str(folder / "a*.parquet")]
    manifest = prepare(inputs, output=folder / "out", **COMMON)
    assert ids_by_length(folder / "out") == {1: [0], 2: [1], 6: [2], 7: [3], 3: [4], 4: [5], 5: [6]}
    assert manifest.source == f"b.parquet, deep, {folder.name}/a*.parquet"
    assert manifest.id_column is None
    prepare(reversed(inputs), output=folder / "other", **COMMON)
    assert ids_by_length(folder / "other") == {3: [0], 4: [1], 5: [2], 6: [3], 7: [4], 1: [5], 2: [6]}


def test_the_command_line_takes_several_and_says_where_ids_come_from(folder: Path) -> None:
    flags = ["--input", folder / "b.parquet", "--input", folder / "deep", "--length-column", "n", "--id-column", "id"]
    flags += ["--max-seq-len", 16, "--output", folder / "out"]
    result = CliRunner().invoke(command, list(map(str, flags)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert ids_by_length(folder / "out") == {1: [101], 2: [102], 6: [106], 7: [107]}
    manifest = open_prepared(folder / "out").manifest
    assert (manifest.id_column, manifest.num_sequences) == ("id", 4)


@pytest.mark.parametrize("second", ["b.parquet", "link.parquet", "*.parquet", "deep/../b.parquet", "."])
def test_a_file_that_is_named_twice_is_refused(folder: Path, second: str) -> None:
    (folder / "link.parquet").symlink_to(folder / "b.parquet")
    with pytest.raises(ValueError, match=r"named twice, by the inputs .*b\.parquet and .*name each file once"):
        prepare([str(folder / "b.parquet"), str(folder / second)], output=folder / "out", **COMMON)
    assert not (folder / "out").exists()


def test_an_index_is_prepared_alone(folder: Path) -> None:
    for name in ("x", "y"):
        with MegatronWriter(folder / name, vocab_size=10) as writer:
            writer.append([1, 2])
    for inputs in (["x.idx", "y.idx"], ["x.idx", "b.parquet"], ["deep", "y.idx"]):
        with pytest.raises(ValueError, match=r"\.idx is Megatron, whose entries are the ids.*join them"):
            prepare([folder / name for name in inputs], max_seq_len=16, output=folder / "out")
    with pytest.raises(ValueError, match="input names nothing"):
        prepare([], output=folder / "out", **COMMON)


def test_the_summary_of_many_inputs_is_short(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(30):
        pq.write_table(pa.table({"n": [1]}), folder / "many" / f"{number:02}.parquet")
    manifest = prepare(sorted((folder / "many").iterdir()), output=folder / "out", **COMMON)
    assert manifest.source.endswith("07.parquet, 22 more")
    assert manifest.num_sequences == 30


def test_a_name_that_is_no_text_does_not_spoil_the_manifest(folder: Path) -> None:
    with MegatronWriter(folder / "\udcff", vocab_size=10) as writer:
        writer.append([1, 2])
    prepare(folder / "\udcff.idx", max_seq_len=16, output=folder / "out")
    assert open_prepared(folder / "out").manifest.source == "\N{REPLACEMENT CHARACTER}.idx"
