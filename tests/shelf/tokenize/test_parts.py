"""Inputs cut into parts: the documents and rows of all parts are those of the whole, and are named alike."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.tokenize import DocumentOptions, Skipped, iterate_documents
from packhorse.tokenize.documents import cut_for, documents_in, find_documents
from packhorse.tokenize.input import parts as module
from packhorse.tokenize.input.parts import Part, cut_into_parts, whole_files


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_PART_BYTES", 40)


def parts_of(path: Path, options: DocumentOptions) -> list[Part]:
    return cut_into_parts(whole_files(find_documents([path], options).files), lambda kind: cut_for(kind, options))


def documents(parts: list[Part], options: DocumentOptions, skipped: Skipped) -> list[str]:
    return [text for part in parts for source in part.ranges for text in documents_in(source, options, skipped)]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("split", ["line", "paragraph", "file"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.sampled_from(["", " ", "a", "word " * 3, "long " * 20, "\t"]), max_size=30), end=st.booleans())
def test_documents_of_the_parts_are_those_of_the_file(tmp_path: Path, split: str, data: list[str], end: bool) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(data) + "\n" * end)
    options = DocumentOptions(split=split)  # type: ignore[arg-type]
    of_whole, of_parts = Skipped(), Skipped()
    whole = list(iterate_documents([path], options, of_whole))
    parts = parts_of(path, options)
    assert documents(parts, options, of_parts) == whole
    assert of_parts == of_whole
    if split == "line" and path.stat().st_size > 300:
        assert len(parts) > 1
    assert sum(part.size_bytes for part in parts) == path.stat().st_size


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_file_that_is_given_twice_is_read_twice(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": ["one", "two"]}), path, row_group_size=1)
    else:
        path.write_text('{"text": "one"}\n{"text": "two"}\n' if name == "a.jsonl" else "one\ntwo\n")
    options = DocumentOptions(split="line" if name == "a.txt" else None)
    files = whole_files(find_documents([path, path], options).files)
    parts = cut_into_parts(files, lambda kind: cut_for(kind, options))
    assert documents(parts, options, Skipped()) == ["one", "two"] * 2


@pytest.mark.usefixtures("small_parts")
def test_a_folder_is_cut_between_its_files(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text(name * 25)
    options = DocumentOptions()
    parts = parts_of(tmp_path, options)
    assert [[Path(span.path).name for span in part.ranges] for part in parts] == [
        ["a.txt", "b.txt"],
        ["c.txt", "d.txt"],
        ["e.txt", "f.txt"],
    ]
    assert documents(parts, options, Skipped()) == [name * 25 for name in "abcdef"]


@pytest.mark.usefixtures("small_parts")
def test_parquet_is_cut_between_row_groups(tmp_path: Path) -> None:
    texts = [f"document {i}" * 3 for i in range(90)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=10)
    options = DocumentOptions(undecodable="error")
    parts = parts_of(tmp_path / "a.parquet", options)
    assert len(parts) > 3
    assert documents(parts, options, Skipped()) == texts


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_stands_in_a_later_part_is_named_by_its_place_in_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        rows = [json.dumps({"text": f"text {i}"}).encode() for i in range(50)]
        rows[37] = b'{"text": "\xff"}'
        path.write_bytes(b"\n".join(rows))
    else:
        cells = pa.array([b"\xff" if i == 37 else b"text" for i in range(50)], pa.binary())
        texts = pa.Array.from_buffers(pa.string(), 50, cells.buffers())
        pq.write_table(pa.table({"text": texts}), path, row_group_size=5)
    options = DocumentOptions()
    parts = parts_of(path, options)
    assert len(parts) > 3
    skipped = Skipped()
    assert len(documents(parts, options, skipped)) == 49
    assert [Path(name).name for name in skipped.undecodable_named] == [
        "rows.jsonl, line 38" if kind == "jsonl" else "rows.parquet, row 37"
    ]
