"""Rows of Parquet and Arrow files, with the columns that are asked for.

Owns reading both kinds of table, and refusing what is missing with its file and row; leaves what the cells mean to
`documents` and `_rows`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, read_arrow, record_batches
from packhorse.formats.object_store import is_url, object_file, without_secrets
from packhorse.tokenize._spans import Span
from packhorse.tokenize.gate import Gate

_BATCH_ROWS = 1024


def parquet_group_sizes(path: str) -> list[int]:
    """Returns the size of each row group of a file in bytes, as they are once decompressed."""
    with _open_parquet(path) as file:
        metadata = file.metadata
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def table_rows(
    span: Span, columns: Sequence[str], gate: Gate, *, are_texts: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (file and row, values of the columns) of Parquet or Arrow."""
    where = span.where
    for row, batch in (
        _parquet_batches(span, columns, are_texts)
        if span.kind == "Parquet"
        else _arrow_batches(span, columns, are_texts)
    ):
        cells = [batch.column(batch.schema.get_field_index(column)) for column in columns]
        try:
            rows = list(zip(*(column.to_pylist() for column in cells), strict=True))
        except UnicodeDecodeError:  # neither format checks what it calls a string
            yield from _readable_rows(where, cells, row, gate)
        else:
            yield from ((f"{where}, row {number}", values) for number, values in enumerate(rows, row))


def _parquet_batches(span: Span, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (first row, record batch)."""
    with _open_parquet(span.path) as file:
        _check_columns(span.where, file.schema_arrow, columns, are_texts)
        row = sum(file.metadata.row_group(group).num_rows for group in range(span.begin))
        groups = list(range(span.begin, span.end))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=list(columns)):
            yield row, batch
            row += batch.num_rows


def _arrow_batches(span: Span, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (first row, record batch)."""
    require("pyarrow")
    reader = read_arrow(object_file(span.path), span.where) if is_url(span.path) else open_arrow(span.path)[1]
    _check_columns(span.where, reader.schema, columns, are_texts)
    row = 0
    for whole in record_batches(reader, span.path):
        for first in range(0, whole.num_rows, _BATCH_ROWS):
            yield row + first, whole.slice(first, _BATCH_ROWS)
        row += whole.num_rows


def _check_columns(where: str, schema: Any, columns: Sequence[str], are_texts: bool) -> None:
    for column in columns:
        if column not in schema.names:
            raise ValueError(f"{where} has no column {column!r}; it has {', '.join(schema.names) or 'none'}")
        kind = schema.field(column).type
        if are_texts and not _is_text(kind):
            raise ValueError(f"{where}: column {column!r} holds {kind}, not text")


def _readable_rows(
    where: str, cells: Sequence[Any], first_row: int, gate: Gate
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the rows of a batch in which at least one is not UTF-8."""
    for index in range(len(cells[0])):
        origin = f"{where}, row {first_row + index}"
        try:
            values = tuple(column[index].as_py() for column in cells)
        except UnicodeDecodeError as error:
            gate.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        yield origin, values


def _is_text(kind: Any) -> bool:
    types = require("pyarrow").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner))


def _open_parquet(path: str) -> Any:
    """Opens a Parquet file, as a context manager."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    try:
        return parquet.ParquetFile(object_file(path) if is_url(path) else path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{without_secrets(path)} is not a Parquet file: {error}") from None
