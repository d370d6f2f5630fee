"""Rows of tables: Parquet and Arrow, batch by batch.

Owns reading columns. Turning cells into Python values is in `_cells`, and rows of all kinds of files are in `rows`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, read_arrow, record_batches
from packhorse.formats.files import object_file
from packhorse.formats.object_store import is_url
from packhorse.tokenize.input._cells import cells_of
from packhorse.tokenize.input.ranges import FileRange, open_parquet
from packhorse.tokenize.input.text_check import TextCheck

_BATCH_ROWS = 1024


def table_rows(
    source: FileRange, columns: Sequence[str], check: TextCheck, *, are_texts: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (file and row, values of the columns) for each row; `are_texts` refuses columns that hold no text."""
    where = source.where
    batches_of = _parquet_batches if source.kind == "Parquet" else _arrow_batches
    for first_row, batch in batches_of(source, columns, are_texts):
        arrays = [batch.column(batch.schema.get_field_index(column)) for column in columns]
        try:
            rows = list(zip(*map(cells_of, arrays), strict=True))
        except UnicodeDecodeError:  # neither format checks that its strings are UTF-8
            yield from _readable_rows(where, arrays, first_row, check)
        else:
            yield from ((f"{where}, row {number}", values) for number, values in enumerate(rows, first_row))


def _parquet_batches(source: FileRange, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (number of its first row in the file, record batch); rows are counted from 0."""
    with open_parquet(source.path) as file:
        _check_columns(source.where, file.schema_arrow, columns, are_texts)
        first_row = sum(file.metadata.row_group(group).num_rows for group in range(source.begin))
        groups = list(range(source.begin, source.end))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=list(columns)):
            yield first_row, batch
            first_row += batch.num_rows


def _arrow_batches(source: FileRange, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (number of its first row in the file, record batch); rows are counted from 0, and a file is one range."""
    reader = arrow_reader(source)
    _check_columns(source.where, reader.schema, columns, are_texts)
    num_read = 0
    for whole in record_batches(reader, source.path):
        for first in range(0, whole.num_rows, _BATCH_ROWS):
            yield num_read + first, whole.slice(first, _BATCH_ROWS)
        num_read += whole.num_rows


def arrow_reader(source: FileRange) -> Any:
    """Opens an Arrow file or object; returns a reader of its record batches."""
    require("pyarrow")
    if is_url(source.path):
        return read_arrow(object_file(source.path), source.where)
    _, reader = open_arrow(source.path)
    return reader


def _check_columns(where: str, schema: Any, columns: Sequence[str], are_texts: bool) -> None:
    """Refuses a table that lacks a column, or whose column holds no text if it must."""
    for column in columns:
        if column not in schema.names:
            raise ValueError(f"{where} has no column {column!r}; it has {', '.join(schema.names) or 'none'}")
        kind = schema.field(column).type
        if are_texts and not _is_text(kind):
            raise ValueError(f"{where}: column {column!r} holds {kind}, not text")


def _readable_rows(
    where: str, arrays: Sequence[Any], first_row: int, check: TextCheck
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the readable rows of a batch in which at least one is not UTF-8, row by row."""
    for index in range(len(arrays[0])):
        origin = f"{where}, row {first_row + index}"
        try:
            values = tuple(cells_of(array.slice(index, 1))[0] for array in arrays)
        except UnicodeDecodeError as error:
            check.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        yield origin, values


def _is_text(kind: Any) -> bool:
    types = require("pyarrow").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner))
