"""Everything that `prepare` refuses, with messages that say where; and that a refusal leaves nothing behind."""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.formats import MegatronWriter
from packhorse.prepare import _sort


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def run(source: Path | str, output: Path, **arguments: Any) -> None:
    prepare(source, **{"length_column": "n", "max_seq_len": 10, "output": output, **arguments})


BAD_VALUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "null length": ({"n": pa.array([1, 2, 3, None, 0])}, ["row 3", "column 'n'", "null"]),
    "zero length": ({"n": pa.array([1, 2, 3, 0, None])}, ["row 3", "column 'n'", "is 0"]),
    "negative length": ({"n": [1, 2, 3, -7, 1]}, ["row 3", "column 'n'", "is -7"]),
    "length beyond int64": ({"n": pa.array([1, 2, 3, 2**63, 1], "uint64")}, ["row 3", "column 'n'", str(2**63)]),
    "null id": ({"n": [1] * 5, "id": pa.array([1, 2, 3, None, 5])}, ["row 3", "column 'id'", "null"]),
    "id beyond int64": ({"n": [1] * 5, "id": pa.array([1, 2, 3, 2**64 - 1, 5], "uint64")}, ["row 3", "'id'", "int64"]),
    "float length": ({"n": [1.0, 2.0]}, ["column 'n'", "double"]),
    "boolean length": ({"n": [True, False]}, ["column 'n'", "bool"]),
    "lists of text": ({"n": [["a"], ["b"]]}, ["column 'n'", "list<element: string>", "lists of integers"]),
    "text id": ({"n": [1, 2], "id": ["a", "b"]}, ["column 'id'", "keys", "integers"]),
    "missing length column": ({"tokens": [1], "len": [2]}, ["no column 'n'", "'tokens', 'len'"]),
    "two ids alike": ({"n": [1, 5, 2, 3], "id": [4, -9, 7, -9]}, ["id -9", "2 times", "row 1 of", "row 3 of"]),
    "two ids alike in one length": ({"n": [2, 2, 2], "id": [8, 9, 8]}, ["id 8", "2 times", "row 0 of", "row 2 of"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_VALUES)
@pytest.mark.parametrize("row_group_size", [2, 100])
def test_bad_values_are_refused_with_their_place(tmp_path: Path, case: str, row_group_size: int) -> None:
    columns, said = BAD_VALUES[case]
    write(tmp_path / "a.parquet", {"n": [1], "id": [100]})
    write(tmp_path / "b.parquet", columns, row_group_size=row_group_size)
    with pytest.raises(ValueError) as caught:
        run(str(tmp_path / "*.parquet"), tmp_path / "out", id_column="id" if "id" in columns else None)
    for words in ["b.parquet", *said]:
        assert words in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_missing_id_column_names_the_columns_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1], "key": [2]})
    with pytest.raises(ValueError, match=re.escape("no column 'id'; its columns are: 'n', 'key'")):
        run(path, tmp_path / "out", id_column="id")


def test_duplicates_across_files_and_windows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sort, "cut_chunks", partial(_sort.cut_chunks, chunk_ids=3))
    ids = np.random.default_rng(0).permutation(50)
    write(tmp_path / "a.parquet", {"n": [1 + i % 7 for i in range(50)], "id": ids})
    write(tmp_path / "b.parquet", {"n": [9, 9], "id": [1000, int(ids[17])]})
    with pytest.raises(ValueError, match=rf"id {ids[17]} occurs 2 times \(row 17 of .*a.parquet.*row 1 of .*b.parq"):
        run(tmp_path, tmp_path / "out", id_column="id")


def test_over_length_names_the_first_their_number_and_the_flags(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [3, 11, 10, 99], "id": [70, 71, 72, 73]}, row_group_size=1)
    with pytest.raises(ValueError) as caught:
        run(path, tmp_path / "out", id_column="id")
    for words in ("sequence 71", "row 1 of", "11 tokens", "10", "one of 2", "max_seq_len", "drop", "truncate"):
        assert words in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.parquet"]


def test_nothing_to_prepare_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.parquet", {"n": pa.array([], "int64")})
    with pytest.raises(ValueError, match="no rows"):
        run(empty, tmp_path / "out")
    with pytest.raises(ValueError, match="all 2 sequences"):
        run(write(tmp_path / "long.parquet", {"n": [11, 12]}), tmp_path / "out", over_length="drop")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no"):
        run(tmp_path / "folder", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        run(str(tmp_path / "z*.parquet"), tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        run(tmp_path / "none.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table" * 100])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read as a Parquet file"):
        run(tmp_path / "x.parquet", tmp_path / "out")


def test_a_damaged_page_is_refused_by_file_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": np.arange(1, 5001) % 10 + 1}, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read"):
        run(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_index_input_takes_no_columns_and_no_empty_sequences(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "x", vocab_size=10) as writer:
        for length in (2, 1, 1):
            writer.append(np.zeros(length, dtype=np.uint16))
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[38:42] = bytes(4)  # the second of the int32 lengths, which begin at byte 34
    index[42:46] = (2).to_bytes(4, "little")  # so that sequences still are end to end
    index[62:70] = (4).to_bytes(8, "little")  # the third of the int64 offsets, which begin at byte 46
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(ValueError, match="no columns"):
        run(tmp_path / "x.idx", tmp_path / "out")
    with pytest.raises(ValueError, match=r"x\.idx: row 1, length is 0"):
        run(tmp_path / "x.idx", tmp_path / "out", length_column=None)
    with pytest.raises(FileNotFoundError):
        run(tmp_path / "y.idx", tmp_path / "out", length_column=None)
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="truncated"):
        run(tmp_path / "x.idx", tmp_path / "out", length_column=None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"over_length": "drop", "keep": "tail"}, "keep='tail'"),
        ({"over_length": "clip"}, "over_length"),
        ({"algorithm": "magic"}, "magic.*best-fit"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_seq_len": 2**31}, "max_seq_len"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin"),
        ({"workers": 0}, "workers"),
        ({"format": "zip"}, "format"),
        ({"length_column": None}, "length_column"),
    ],
)
def test_arguments_are_checked_by_name(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1]})
    with pytest.raises(ValueError, match=said):
        run(path, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_a_refusal_in_a_worker_process_reaches_the_caller(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 2, 3, 0]}, row_group_size=1)
    with pytest.raises(ValueError, match=r"x\.parquet: row 3, column 'n' is 0"):
        run(path, tmp_path / "out", workers=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.parquet"]


def _fewer_rows(path: Path) -> None:
    write(path, {"n": [1, 2]})


def _gone(path: Path) -> None:
    path.unlink()


def _other_lengths_same_stamp(path: Path) -> None:
    _rewrite_same_stamp(path, [1, 2, 3, 4])


def _one_more_dropped_same_stamp(path: Path) -> None:
    _rewrite_same_stamp(path, [4, 3, 2, 99])


def _rewrite_same_stamp(path: Path, lengths: list[int]) -> None:
    before = path.stat()
    plain(path, lengths)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def plain(path: Path, lengths: list[int]) -> Path:
    return write(path, {"n": lengths}, use_dictionary=False, compression="none", write_statistics=False)


@pytest.mark.parametrize("change", [_fewer_rows, _gone, _other_lengths_same_stamp, _one_more_dropped_same_stamp])
def test_a_file_that_changes_between_the_passes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    path = plain(tmp_path / "x.parquet", [4, 3, 2, 2])
    plan = _sort.pack_histogram

    def change_then_plan(*arguments: Any, **options: Any) -> Any:
        change(path)
        return plan(*arguments, **options)

    monkeypatch.setattr(_sort, "pack_histogram", change_then_plan)
    with pytest.raises(ValueError, match=r"x\.parquet changed"):
        run(path, tmp_path / "out", over_length="drop")
    assert {p.name for p in tmp_path.iterdir()} <= {"x.parquet"}


@pytest.mark.parametrize("where", ["pack_histogram", "write_spill", "merge_task", "find_duplicate", "seal"])
@pytest.mark.parametrize("layout", ["packhorse", "seqpack"])
def test_an_interrupted_prepare_leaves_no_dataset_and_an_old_output_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, layout: str
) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 2, 3], "id": [5, 6, 7]})
    run(path, tmp_path / "old")
    before = {p.name: (p.read_bytes(), p.stat().st_ino) for p in (tmp_path / "old").iterdir()}

    def interrupted(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sort, where, interrupted)
    for output in ("old", "new"):
        with pytest.raises(KeyboardInterrupt):
            run(path, tmp_path / output, id_column="id", overwrite=True, format=layout)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".new.work", ".old.work", "old", "x.parquet"]
    assert not any((tmp_path / name / "output").exists() for name in (".new.work", ".old.work"))
    assert {p.name: (p.read_bytes(), p.stat().st_ino) for p in (tmp_path / "old").iterdir()} == before


def test_an_existing_output_is_refused_before_reading(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            run(tmp_path / "does-not-matter.parquet", tmp_path / "out", overwrite=overwrite)
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1]})
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=re.escape("packhorse[prepare]")):
        run(path, tmp_path / "out")
