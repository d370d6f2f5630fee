"""Rows of JSON files: one for each line, the elements of an array, or values one after the other.

Owns parsing them with little memory. Rows of all kinds of files are in `rows`.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from packhorse.sft.forms.plain_data import called, json_fault
from packhorse.tokenize.input.ranges import FileRange, LinePlace, lines_of, open_decompressed
from packhorse.tokenize.input.text_check import BYTE_ORDER_MARK, TextCheck, refuse_encoding

_READ_CHARACTERS = 1 << 20
_HEAD_BYTES = 4
"""Bytes by which `refuse_encoding` tells an encoding."""
_GAP = re.compile(r"[\s,]*")
"""What may be between two values."""


def json_rows(
    source: FileRange, keys: Sequence[str], check: TextCheck
) -> Iterator[tuple[LinePlace | str, dict[str, Any]]]:
    """Yields (where it is, row) for each row that has all `keys`; a row without one is bad.

    Printed, the first of the two says the file, and the line or the number of the entry.
    """
    for origin, row in _lines(source, check) if source.kind == "JSON lines" else _values(source):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            there = (", ".join(row) or "no keys") if isinstance(row, dict) else called(row)
            check.bad(origin, f"{origin} has no key {missing[0]!r}; it has {there}")
            continue
        yield origin, row


def _lines(source: FileRange, check: TextCheck) -> Iterator[tuple[LinePlace, Any]]:
    """Yields (where it is, value) for each line of JSON that is not blank; counts bad and undecodable lines."""
    for number, (origin, line) in enumerate(lines_of(source)):
        if number == 0 and source.begin == 0:
            refuse_encoding(line, source.where)
        data = line.removeprefix(BYTE_ORDER_MARK).strip()
        if not data:
            continue
        try:
            yield origin, json.loads(data.decode())
        except UnicodeDecodeError as error:
            check.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
        except json.JSONDecodeError as error:
            check.bad(origin, f"{origin} is not JSON: {json_fault(error)}")
        except RecursionError:
            check.bad(origin, f"{origin} is nested too deeply")


def _values(source: FileRange) -> Iterator[tuple[str, Any]]:
    """Yields the elements of a file's array, or its values one after the other, each with its place in the file.

    Memory is about that of the longest value.
    """
    with open_decompressed(source.path) as file:
        refuse_encoding(cast(io.BufferedReader, file).peek(_HEAD_BYTES), source.where)
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        try:
            yield from _parsed(text, source.where)
        except UnicodeDecodeError as error:
            raise ValueError(f"{source.where} is not UTF-8: {error.reason}; write it again as UTF-8") from None
        except RecursionError:
            raise ValueError(f"{source.where} is nested too deeply") from None


def _parsed(text: io.TextIOBase, where: str) -> Iterator[tuple[str, Any]]:
    """Parses values from a buffer of text, and reads more whenever the buffer ends within a value."""
    decoder = json.JSONDecoder()
    buffer, at = "", 0  # what was read and is not parsed yet begins at buffer[at]
    number = 0  # number of the next entry
    is_array = is_closed = False  # whether the text has begun with "[", and whether "]" has come
    is_at_end = False  # whether the buffer holds all the rest of the file
    while True:
        at = _GAP.match(buffer, at).end()  # type: ignore[union-attr]
        if at < len(buffer) and number == 0 and not is_array and buffer[at] == "[":
            is_array, at = True, at + 1
            continue
        if at < len(buffer) and is_array and not is_closed and buffer[at] == "]":
            is_closed, at = True, at + 1
            continue
        failure = "something follows the array"
        if at < len(buffer) and not is_closed:
            try:
                value, end = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                failure = error.msg
            else:
                if end < len(buffer) or is_at_end:  # at the buffer's end, a number may continue
                    yield f"{where}, entry {number}", value
                    at, number = end, number + 1
                    continue
        if is_at_end:
            break
        # At least as much again as is not parsed: a long value is parsed anew after each read, so there must be few.
        more = text.read(max(_READ_CHARACTERS, len(buffer) - at))
        buffer, at, is_at_end = buffer[at:] + more, 0, not more
    if at < len(buffer):
        raise ValueError(f"{where}, entry {number} is not JSON: {failure}")
    if is_array and not is_closed:
        raise ValueError(f"{where} ends within its array, after entry {number - 1}; the file is cut off")
