"""Rows of JSON, Parquet and Arrow files, with the columns that are asked for.

Owns reading all three and refusing what is missing with its file and row. Leaves what cells mean to `documents` and
`columns`.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, read_arrow, record_batches
from packhorse.formats.object_store import is_url, object_file, without_secrets
from packhorse.sft.messages import called, json_fault
from packhorse.tokenize._inputs import ROW_KINDS, Found, find_inputs
from packhorse.tokenize._spans import Line, Span, lines_of, open_plain
from packhorse.tokenize.gate import BYTE_ORDER_MARK, Gate

_READ_CHARACTERS = 1 << 20
_BATCH_ROWS = 1024
_GAP = re.compile(r"[\s,]*")


def json_rows(span: Span, keys: Sequence[str], gate: Gate) -> Iterator[tuple[Line | str, dict[str, Any]]]:
    """Yields (file and line or entry, row) with every key."""
    for origin, row in _lines(span, gate) if span.kind == "JSON lines" else _values(span):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            there = (", ".join(row) or "no keys") if isinstance(row, dict) else called(row)
            raise ValueError(f"{origin} has no key {missing[0]!r}; it has {there}")
        yield origin, row


def _lines(span: Span, gate: Gate) -> Iterator[tuple[Line, Any]]:
    for origin, line in lines_of(span):
        data = line.removeprefix(BYTE_ORDER_MARK).strip()
        if not data:
            continue
        try:
            yield origin, json.loads(data.decode())
        except UnicodeDecodeError as error:
            gate.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
        except json.JSONDecodeError as error:
            raise ValueError(f"{origin} is not JSON: {json_fault(error)}") from None
        except RecursionError:
            raise ValueError(f"{origin} is nested too deeply") from None


def _values(span: Span) -> Iterator[tuple[str, Any]]:
    """Yields the elements of a file's array, or its values; memory is about the longest of them."""
    with open_plain(span.path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        try:
            yield from _decoded(text, span.where)
        except UnicodeDecodeError as error:
            raise ValueError(f"{span.where} is not UTF-8: {error.reason}; write it again as UTF-8") from None
        except RecursionError:
            raise ValueError(f"{span.where} is nested too deeply") from None


def _decoded(text: io.TextIOBase, where: str) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    buffer, at, number = "", 0, 0
    is_array = is_closed = is_whole = False
    while True:
        at = _GAP.match(buffer, at).end()  # type: ignore[union-attr]
        if at < len(buffer) and number == 0 and not is_array and buffer[at] == "[":
            is_array, at = True, at + 1
            continue
        if at < len(buffer) and is_array and buffer[at] == "]":
            is_closed, at = True, at + 1
            continue
        failure = "something follows the array"
        if at < len(buffer) and not is_closed:
            try:
                value, end = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                failure = error.msg
            else:
                if end < len(buffer) or is_whole:  # else it may go on, as a number does
                    yield f"{where}, entry {number}", value
                    at, number = end, number + 1
                    continue
        if is_whole:
            break
        more = text.read(max(_READ_CHARACTERS, len(buffer) - at))
        buffer, at, is_whole = buffer[at:] + more, 0, not more
    if at < len(buffer):
        raise ValueError(f"{where}, entry {number} is not JSON: {failure}")
    if is_array and not is_closed:
        raise ValueError(f"{where} ends within its array, after entry {number - 1}; the file is cut off")


@dataclass(frozen=True, slots=True)
class Row:
    """Some columns of a row."""

    origin: object
    """File, and line or row, once it is made a string."""
    values: tuple[Any, ...]
    """One for each column asked for; None where an optional one is missing."""


def row_files(inputs: Sequence[str | os.PathLike[str]]) -> Found:
    """Returns the files that inputs name, in order.

    Args:
        inputs: files of rows, folders and glob patterns of such, and URLs.

    Raises:
        FileNotFoundError: an input is not there.
        ValueError: one is another kind of file.
    """
    found = find_inputs(inputs)
    for path, kind in found.files:
        if kind in ("text", "folder"):
            raise ValueError(
                f"{without_secrets(path)} has no rows: they come in files that end in {', '.join(ROW_KINDS)}, those "
                "of JSON also compressed (.gz, .zst)"
            )
    return found


def rows_of(
    span: Span, columns: Sequence[str], optional_columns: Sequence[str], gate: Gate, seen: set[str]
) -> Iterator[Row]:
    """Yields columns of a file, or of some of it; memory is one row of JSON or one batch.

    Args:
        span: of a file of rows.
        columns: columns, or keys of each row of JSON, that must be there.
        optional_columns: the same, where a row of JSON may lack the key.
        gate: leaves out lines and rows that are not UTF-8.
        seen: gets the optional columns that some line has.

    Raises:
        ValueError: a column or key is missing, or a line is not JSON.
    """
    if span.kind in ("Parquet", "Arrow"):
        for origin, values in table_rows(span, (*columns, *optional_columns), gate):
            seen.update(optional_columns)
            yield Row(origin, values)
        return
    for line, row in json_rows(span, columns, gate):
        seen.update(column for column in optional_columns if column in row)
        yield Row(line, tuple(row.get(column) for column in (*columns, *optional_columns)))


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
