"""Lengths of Parquet lists from levels alone, against pyarrow's own decoding."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input.parquet import ParquetReader
from packhorse.prepare.input.parquet_pages._snappy import unpack_snappy
from packhorse.prepare.input.parquet_pages.levels import UnknownPageError, _page, list_column, list_lengths

Lists = list[list[int | None] | None]


def read_levels(path: Path, column: str = "t") -> list[int | None]:
    """Length of every list, None where one is null."""
    file = pq.ParquetFile(path)
    leaf = list_column(file, column)
    assert leaf is not None
    data = np.memmap(path, np.uint8, "r")
    found: list[int | None] = []
    for group in range(file.metadata.num_row_groups):
        metadata = file.metadata.row_group(group)
        nullable = file.schema_arrow.field(column).nullable
        chunk = metadata.column(leaf)
        lengths, nulls = list_lengths(data, chunk, file.schema.column(leaf), metadata.num_rows, nullable)
        is_null = np.zeros(len(lengths), bool) if nulls is None else nulls
        found += [None if null else length for length, null in zip(lengths.tolist(), is_null.tolist(), strict=True)]
    return found


values = st.none() | st.integers(0, 30_000)
lists = st.none() | st.lists(values, max_size=20) | st.builds(lambda n: [7] * n, st.sampled_from([8, 9, 64, 500, 3000]))


@settings(max_examples=60)
@given(
    rows=st.lists(lists, min_size=1, max_size=60),
    repeat=st.sampled_from([1, 1, 40]),
    options=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli", "lz4"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.booleans(),
            "row_group_size": st.sampled_from([3, 50, 10_000]),
            "data_page_size": st.sampled_from([64, 1 << 20]),
            "write_batch_size": st.sampled_from([5, 1024]),
        }
    ),
)
def test_levels_say_what_decoding_says(
    tmp_path_factory: pytest.TempPathFactory, rows: Lists, repeat: int, options: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "levels.parquet"
    rows = rows * repeat
    pq.write_table(pa.table({"t": pa.array(rows, pa.list_(pa.int32()))}), path, **options)
    assert read_levels(path) == [None if row is None else len(row) for row in rows]


@pytest.mark.parametrize("list_nulls", [False, True])
@pytest.mark.parametrize("value_nulls", [False, True])
def test_nullability_of_lists_and_values(tmp_path: Path, list_nulls: bool, value_nulls: bool) -> None:
    kind = pa.large_list(pa.field("element", pa.uint16(), nullable=value_nulls))
    schema = pa.schema([pa.field("t", kind, nullable=list_nulls), ("t.x", pa.int32())])
    rows: Lists = [[1], [], [None] * 3 if value_nulls else [4, 5, 6], None if list_nulls else [9]] * 5
    pq.write_table(pa.table({"t": pa.array(rows, kind), "t.x": range(20)}, schema=schema), tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert list_column(file, "t") is None  # "t.x" might be of "t": pyarrow reads it
    pq.write_table(pa.table([pa.array(rows, kind)], schema=schema.remove(1)), tmp_path / "x.parquet")
    assert read_levels(tmp_path / "x.parquet") == [None if row is None else len(row) for row in rows]


def test_no_value_is_read(tmp_path: Path) -> None:
    rows = [[number] * 50 for number in range(400)]
    path = tmp_path / "x.parquet"
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"}
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), path, **options)
    data = bytearray(path.read_bytes())
    first = data.find(np.array(rows[3], np.int32).tobytes())
    data[first : first + 4 * 50 * 300] = bytes(4 * 50 * 300)
    path.write_bytes(data)
    opened = ParquetReader().open([str(path)], InputColumns())
    (batch,) = opened.ranges[0].batches()
    assert batch.lengths.tolist() == [50] * 400
    assert pq.read_table(path)["input_ids"][4].as_py() == [0] * 50


def test_damage_is_left_to_pyarrow_to_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [rng.integers(0, 9, length).tolist() for length in rng.integers(1, 60, 900)]
    path = tmp_path / "x.parquet"
    expected = [len(row) for row in rows]
    num_refused = 0
    for codec in ("none", "snappy", "zstd", "gzip"):
        pq.write_table(pa.table({"t": rows}), path, compression=codec, row_group_size=300)
        whole = path.read_bytes()
        for at in rng.integers(4, 600, 60).tolist():
            changed = bytearray(whole)
            changed[at : at + 3] = rng.bytes(3)
            path.write_bytes(changed)
            try:
                assert len(read_levels(path)) == len(expected)  # a changed value is nobody's to notice here
            except UnknownPageError:
                num_refused += 1
    assert num_refused > 60


def test_snappy_blocks_are_unpacked_as_far_as_wanted() -> None:
    rng = np.random.default_rng(2)
    for size in (0, 1, 59, 60, 61, 300, 70_000):
        plain = np.repeat(rng.integers(0, 4, size // 3 + 1), 3)[:size].astype(np.uint8)
        packed = np.frombuffer(pa.Codec("snappy").compress(plain.tobytes(), asbytes=True), np.uint8)
        for begin, end in pairwise(sorted({0, min(1, size), size // 2, size})):
            for wanted in (begin, end):
                out = np.zeros(wanted, np.uint8)
                assert unpack_snappy(packed, out) == wanted
                assert (out == plain[:wanted]).all()
        assert unpack_snappy(packed[: len(packed) // 2], np.zeros(size, np.uint8)) in range(-1, max(size, 1))


def test_ids_beside_lists_and_files_that_only_pyarrow_reads(tmp_path: Path) -> None:
    rows = [[1] * (1 + number % 7) for number in range(100)]
    table = pa.table(
        {"t": rows, "id": pa.array(range(500, 600)), "fixed": pa.array(rows[6:7] * 100, pa.list_(pa.int64(), 7))}
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=30)
    for column, expected in (("t", [len(row) for row in rows]), ("fixed", [7] * 100)):
        opened = ParquetReader().open([str(tmp_path / "x.parquet")], InputColumns(length=column, id="id"))
        assert list_column(pq.ParquetFile(tmp_path / "x.parquet"), "fixed") is None
        batches = [batch for each in opened.ranges for batch in each.batches()]
        assert np.concatenate([batch.lengths for batch in batches]).tolist() == expected
        assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(500, 600))
        joined = opened.ranges[0].through(opened.ranges[-1])
        assert sum(len(batch.lengths) for batch in joined.batches()) == 100


def zigzag(number: int) -> bytes:
    assert 0 <= number < 64
    return bytes([2 * number])


@pytest.mark.parametrize(
    "inner",
    [
        b"",  # no header of the data at all
        b"\x25" + zigzag(1),  # an integer for it
        b"\x2c\x15\x01\x00",  # -1 values
        b"\x2c\x18\x00\x00",  # a string for the number of values
    ],
)
def test_a_damaged_header_is_a_page_that_is_not_known(inner):
    """Its fields: kind 0, unpacked and packed bytes, then the header of the data, field 5."""
    header = b"\x15" + zigzag(0) + b"\x15" + zigzag(4) + b"\x15" + zigzag(4) + inner + b"\x00" + bytes(4)
    with pytest.raises(UnknownPageError):
        _page(np.frombuffer(header, np.uint8), 0, len(header))


def test_a_sound_header_is_read():
    header = b"\x15" + zigzag(0) + b"\x15" + zigzag(4) + b"\x15" + zigzag(4) + b"\x2c\x15" + zigzag(3) + b"\x00\x00"
    page = _page(np.frombuffer(header + bytes(4), np.uint8), 0, len(header) + 4)
    assert (page.num_values, page.size_bytes) == (3, 4)
