"""Rows out of JSON, Parquet and Arrow files: columns of chats, or of prompts and responses.

Owns which columns must be there; leaves reading them to `_tables`.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.formats.object_store import without_secrets
from packhorse.sft.messages import called, json_fault
from packhorse.tokenize._inputs import ROW_KINDS, Found, find_inputs
from packhorse.tokenize._spans import Line, Span, lines_of, open_plain
from packhorse.tokenize._tables import table_rows
from packhorse.tokenize.gate import BYTE_ORDER_MARK, Gate

_READ_CHARACTERS = 1 << 20
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
