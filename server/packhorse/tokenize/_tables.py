"""Rows of JSON lines and Parquet files, with the columns that are asked for.

Owns reading both kinds of table, and refusing what is missing with its file and row; leaves what the cells mean to
`documents` and `_rows`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from packhorse.formats import require
from packhorse.formats.object_store import is_url, object_file, without_secrets
from packhorse.tokenize._spans import Line, Span, lines_of
from packhorse.tokenize.gate import BYTE_ORDER_MARK, Gate

_PARQUET_ROWS = 1024


def json_lines(span: Span, keys: Sequence[str], gate: Gate) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Yields (file and line, what stands there), with every key."""
    for origin, line in lines_of(span):
        data = line.removeprefix(BYTE_ORDER_MARK).strip()
        if not data:
            continue
        try:
            row = json.loads(data.decode())
        except UnicodeDecodeError as error:
            gate.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        except json.JSONDecodeError as error:
            raise ValueError(f"{origin} is not JSON: {error.msg} at column {error.colno}") from None
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            there = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise ValueError(f"{origin} has no key {missing[0]!r}; it has {there or 'no keys'}")
        yield origin, row


def parquet_group_sizes(path: str) -> list[int]:
    """Returns the size of each row group of a file in bytes, as they are once decompressed."""
    with _open_parquet(path) as file:
        metadata = file.metadata
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def parquet_rows(
    span: Span, columns: Sequence[str], gate: Gate, *, are_texts: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (file and row, values of the columns)."""
    where = span.where
    with _open_parquet(span.path) as file:
        schema = file.schema_arrow
        for column in columns:
            if column not in schema.names:
                raise ValueError(f"{where} has no column {column!r}; it has {', '.join(schema.names) or 'none'}")
            kind = schema.field(column).type
            if are_texts and not _is_text(kind):
                raise ValueError(f"{where}: column {column!r} holds {kind}, not text")
        row = sum(file.metadata.row_group(group).num_rows for group in range(span.begin))
        groups = list(range(span.begin, span.end))
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, row_groups=groups, columns=list(columns)):
            cells = [batch.column(column) for column in columns]
            try:
                rows = list(zip(*(column.to_pylist() for column in cells), strict=True))
            except UnicodeDecodeError:  # Parquet does not check what it calls a string
                yield from _readable_rows(where, cells, row, gate)
            else:
                yield from ((f"{where}, row {number}", values) for number, values in enumerate(rows, row))
            row += batch.num_rows


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
