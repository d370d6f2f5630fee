"""Cells of Arrow columns are the values that they were before they became a table, whatever the depth."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packhorse.tokenize import Skipped
from packhorse.tokenize.input._cells import cells_of
from packhorse.tokenize.input.parts import whole_files
from packhorse.tokenize.input.rows import row_files, rows_of
from packhorse.tokenize.input.text_check import TextCheck


def call(**arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}


def test_keys_of_other_rows_are_no_keys_of_this_one_at_any_depth() -> None:
    rows = [
        [{"role": "user", "content": "a", "weight": 0}, call(city={"deep": [{"x": 1}]})],
        [{"role": "user", "content": "b"}, call(ticker={"deep": [{"y": "z", "w": {"v": [None, 1]}}]})],
        None,
        [],
    ]
    table = pa.Table.from_pylist([{"rows": row} for row in rows])
    assert cells_of(table["rows"].combine_chunks()) == rows
    large = table["rows"].type.value_type
    assert cells_of(table["rows"].combine_chunks().cast(pa.large_list(large))) == rows


def test_a_null_of_json_is_kept_and_so_is_a_null_in_a_list_or_map() -> None:
    value = {"city": None, "deep": [{"x": None}, None]}
    texts = pa.array([json.dumps(value), None, "not {json"])
    assert cells_of(pa.ExtensionArray.from_storage(pa.json_(), texts)) == [value, None, "not {json"]
    assert cells_of(pa.array([[1, None]])) == [[1, None]]
    assert cells_of(pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))) == [{"a": None}]


def test_a_part_without_an_image_has_no_key_of_one() -> None:
    parts = [[{"type": "text", "text": "a"}], [{"type": "image", "image": "x.png"}]]
    assert cells_of(pa.array(parts)) == parts
    said = [{"role": "assistant", "content": None}, {"role": "user", "content": "a"}]
    assert cells_of(pa.array(said)) == said  # a content may be null
    assert cells_of(pa.array([{"name": "f", "content": None}])) == [{"name": "f"}]


def test_a_row_that_is_not_utf8_changes_nothing_in_the_other_rows_of_its_batch(tmp_path: Path) -> None:
    messages = pa.array([[{"role": "user", "content": "a"}], [call(city="Rome")], [{"role": "user", "content": "b"}]])
    tools = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['[{"name": "f"}]', None, "[]"]))
    notes = pa.Array.from_buffers(pa.string(), 3, pa.array([b"x", b"y", b"\xff"], pa.binary()).buffers())
    pq.write_table(pa.table({"messages": messages, "tools": tools, "notes": notes}), tmp_path / "a.parquet")
    (file,) = whole_files(row_files([tmp_path / "a.parquet"]).files)
    skipped = Skipped()
    rows = rows_of(file.range, ["messages", "tools", "notes"], [], TextCheck("skip", skipped), set())
    assert [row.values for row in rows] == [
        ([{"role": "user", "content": "a"}], [{"name": "f"}], "x"),
        ([call(city="Rome")], None, "y"),
    ]
    assert skipped.undecodable == 1
