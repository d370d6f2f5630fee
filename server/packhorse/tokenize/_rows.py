"""Columns of JSON, Parquet and Arrow rows, and the text that is left out.

Owns reading all three, and refusing or counting what cannot be read with its file and row. Leaves what cells mean to
`documents` and `columns`.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO, cast

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, read_arrow, record_batches
from packhorse.formats.object_store import is_url, object_file, without_secrets
from packhorse.parameters import parameter
from packhorse.sft.messages import called, json_fault
from packhorse.tokenize._cells import cells_of
from packhorse.tokenize._ledger import Reason, write_entry
from packhorse.tokenize._parts import ROW_KINDS, FileRange, Found, Line, find_inputs, lines_of, open_parquet, open_plain
from packhorse.tokenize._special_texts import SpecialTexts

Undecodable = Literal["skip", "error"]
"""What happens to text that is binary or not UTF-8."""
OnBadRow = Literal["error", "skip"]
"""What happens to a row that cannot be read or encoded."""

MOST_NAMED = 5
"""How many of the documents left out are named."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_CHARACTERS = 1 << 20
_BATCH_ROWS = 1024
_GAP = re.compile(r"[\s,]*")


@dataclass(slots=True)
class Skipped:
    """Documents that one pass left out."""

    empty: int = 0
    """Documents of only white space, or null."""
    undecodable: int = 0
    """Documents that are binary or not UTF-8."""
    undecodable_named: list[str] = field(default_factory=list)
    """The first few of them: file, and line if there is one."""
    bad: int = 0
    """Rows that cannot be read or encoded."""
    bad_named: list[str] = field(default_factory=list)
    """The first few of them, with what is wrong."""
    ledger: TextIO | None = None
    """Where each row that is left out is written down; None for nowhere."""

    def leave_out(self, reason: Reason, origin: object, why: str = "") -> None:
        """Writes down a row that was left out and counted."""
        if self.ledger is not None:
            write_entry(self.ledger, str(origin), reason, why)

    def leave_out_empty(self, origin: object) -> None:
        """Counts a row that holds nothing."""
        self.empty += 1
        self.leave_out("empty", origin)

    def refuse_bad(self) -> None:
        """Raises a ValueError that names the bad rows; nothing if there are none."""
        if self.bad:
            raise ValueError(refusal_of(self.bad_named, self.bad))


def refusal_of(named: Sequence[str], count: int) -> str:
    """Returns the message about bad rows: the first ones, each with its fault."""
    message = named[0]
    for number, fault in enumerate(named[1:]):
        message = message + ("; " if number else ". Bad rows too: ") + fault
    rest = f", and {count - len(named):,} more" if count > len(named) else ""
    return message + rest + "; repair them, or leave bad rows out with " + parameter("on_bad_row", "skip")


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Yields text that is neither empty nor undecodable, at most one document a call, and counts the rest.

    Printed, an `origin` says where the text is.
    """

    undecodable: Undecodable
    skipped: Skipped
    on_bad_row: OnBadRow = "error"
    special: SpecialTexts | None = None
    """Special tokens that refuse the text that spells one; None for none."""

    def bad(self, origin: object, fault: str) -> None:
        """Counts a bad row. If those are not skipped, number MOST_NAMED raises a ValueError with all of them.

        Whoever reads rows calls `Skipped.refuse_bad` when there are no more.
        """
        self.skipped.bad += 1
        if len(self.skipped.bad_named) < MOST_NAMED:
            self.skipped.bad_named.append(fault)
        if self.on_bad_row == "error":
            if self.skipped.bad == MOST_NAMED:
                self.skipped.refuse_bad()
        else:
            self.skipped.leave_out("bad", origin, fault.removeprefix(str(origin)).lstrip(" :"))

    def decode(self, data: bytes, origin: object) -> Iterator[str]:
        """Checks bytes that should be UTF-8; with a null byte they are binary."""
        if b"\0" in data:
            encoding = foreign_encoding(data)
            why = f"is {encoding}, not UTF-8" if encoding else "holds null bytes, so it is binary"
            self.refuse(origin, why, encoding)
            return
        try:
            text = data.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            self.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            return
        yield from self.text(text, origin)

    def text(self, text: str | None, origin: object) -> Iterator[str]:
        """Checks decoded text."""
        if text is None or not text.strip():
            self.skipped.leave_out_empty(origin)
            return
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                self.refuse(origin, f"has no UTF-8 form: {error.reason} at character {error.start}")
                return
        found = None if self.special is None else self.special.first_in(text)
        if found is not None:
            self.bad(
                origin,
                f"{origin} spells the special token {found!r}; write such texts as text with "
                + parameter("special_in_text", "text")
                + ", or as the token with "
                + parameter("special_in_text", "keep"),
            )
            return
        yield text

    def refuse(self, origin: object, why: str, named_as: str = "") -> None:
        """Counts a document that is not text, or raises a ValueError if `undecodable` is "error"."""
        if self.undecodable == "error":
            raise ValueError(
                f"{origin} {why}; leave it out, or skip such text with " + parameter("undecodable", "skip")
            )
        self.skipped.undecodable += 1
        self.skipped.leave_out("undecodable", origin, why)
        if len(self.skipped.undecodable_named) < MOST_NAMED:
            self.skipped.undecodable_named.append(f"{origin} ({named_as})" if named_as else str(origin))


_MARKS = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def foreign_encoding(head: bytes) -> str:
    """Returns the name of the encoding with which a file begins if it is UTF-16 or UTF-32; else an empty text."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    without_mark = len(head) >= 4 and [byte > 0 for byte in head[:4]] in ([True, False] * 2, [False, True] * 2)
    return "UTF-16" if without_mark and (head[0] or head[1]) in b'{["' else ""


def refuse_encoding(head: bytes, where: str) -> None:
    """Raises a ValueError about a file of rows that begins like UTF-16 or UTF-32."""
    if encoding := foreign_encoding(head):
        raise ValueError(
            f"{where} is {encoding}, not UTF-8; write it again, as with `iconv -f {encoding} -t UTF-8 FILE > NEW`"
        )


def json_rows(source: FileRange, keys: Sequence[str], check: TextCheck) -> Iterator[tuple[Line | str, dict[str, Any]]]:
    """Yields (file and line or entry, row) with every key."""
    for origin, row in _lines(source, check) if source.kind == "JSON lines" else _values(source):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            there = (", ".join(row) or "no keys") if isinstance(row, dict) else called(row)
            check.bad(origin, f"{origin} has no key {missing[0]!r}; it has {there}")
            continue
        yield origin, row


def _lines(source: FileRange, check: TextCheck) -> Iterator[tuple[Line, Any]]:
    for number, (origin, line) in enumerate(lines_of(source)):
        if number == 0 and source.begin == 0:
            refuse_encoding(line, source.where)
        data = line.removeprefix(_BYTE_ORDER_MARK).strip()
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
    """Yields the elements of a file's array, or its values; takes about as much memory as the longest."""
    with open_plain(source.path) as file:
        refuse_encoding(cast(io.BufferedReader, file).peek(4), source.where)
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        try:
            yield from _decoded(text, source.where)
        except UnicodeDecodeError as error:
            raise ValueError(f"{source.where} is not UTF-8: {error.reason}; write it again as UTF-8") from None
        except RecursionError:
            raise ValueError(f"{source.where} is nested too deeply") from None


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
    """File, and line or row, when printed."""
    values: tuple[Any, ...]
    """One for each column; None for a missing optional one."""
    others: tuple[str, ...] = ()
    """Further columns that hold something; of a table, all of them."""


def row_files(inputs: Sequence[str | os.PathLike[str]]) -> Found:
    """Returns the files that inputs name, as `find_inputs` does; a ValueError if one has no rows."""
    found = find_inputs(inputs)
    for path, kind in found.files:
        if kind in ("text", "folder"):
            raise ValueError(
                f"{without_secrets(path)} has no rows: they are in files that end in {', '.join(ROW_KINDS)}, those of "
                "JSON also compressed (.gz, .zst)"
            )
    return found


def rows_of(
    source: FileRange, columns: Sequence[str], optional_columns: Sequence[str], check: TextCheck, seen: set[str]
) -> Iterator[Row]:
    """Yields columns of rows, one row of JSON or one batch in memory; adds the optional ones that are there to `seen`.

    Raises:
        ValueError: a column or key is missing, or a line is not JSON.
    """
    if source.kind in ("Parquet", "Arrow"):
        names = column_names(source)
        there = [column for column in optional_columns if column in names]
        others = tuple(name for name in names if name not in columns and name not in there)
        seen.update(there)
        for origin, values in table_rows(source, (*columns, *there), check):
            more = dict(zip(there, values[len(columns) :], strict=True))
            yield Row(origin, (*values[: len(columns)], *map(more.get, optional_columns)), others)
        return
    known = {*columns, *optional_columns}
    for line, row in json_rows(source, columns, check):
        seen.update(column for column in optional_columns if column in row)
        others = tuple(key for key, value in row.items() if key not in known and value not in _NOTHING)
        yield Row(line, tuple(row.get(column) for column in (*columns, *optional_columns)), others)


_NOTHING: tuple[Any, ...] = (None, "", [], {})


def column_names(source: FileRange) -> list[str]:
    """Returns the names of a table's columns."""
    if source.kind == "Parquet":
        with open_parquet(source.path) as file:
            return list(file.schema_arrow.names)
    require("pyarrow")
    reader = read_arrow(object_file(source.path), source.where) if is_url(source.path) else open_arrow(source.path)[1]
    return list(reader.schema.names)


def first_names(source: FileRange) -> list[str]:
    """Returns the columns of a table, or the keys of a file's first row of JSON; none if it is no object."""
    if source.kind in ("Parquet", "Arrow"):
        return column_names(source)
    try:
        _, row = next(json_rows(source, (), TextCheck("skip", Skipped())))
    except (StopIteration, ValueError):  # whoever reads the rows says what is wrong
        return []
    return list(row) if isinstance(row, dict) else []


def table_rows(
    source: FileRange, columns: Sequence[str], check: TextCheck, *, are_texts: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (file and row, values of the columns) of Parquet or Arrow."""
    where = source.where
    for row, batch in (
        _parquet_batches(source, columns, are_texts)
        if source.kind == "Parquet"
        else _arrow_batches(source, columns, are_texts)
    ):
        cells = [batch.column(batch.schema.get_field_index(column)) for column in columns]
        try:
            rows = list(zip(*map(cells_of, cells), strict=True))
        except UnicodeDecodeError:  # neither format checks what it calls a string
            yield from _readable_rows(where, cells, row, check)
        else:
            yield from ((f"{where}, row {number}", values) for number, values in enumerate(rows, row))


def _parquet_batches(source: FileRange, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (first row, record batch)."""
    with open_parquet(source.path) as file:
        _check_columns(source.where, file.schema_arrow, columns, are_texts)
        row = sum(file.metadata.row_group(group).num_rows for group in range(source.begin))
        groups = list(range(source.begin, source.end))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=list(columns)):
            yield row, batch
            row += batch.num_rows


def _arrow_batches(source: FileRange, columns: Sequence[str], are_texts: bool) -> Iterator[tuple[int, Any]]:
    """Yields (first row, record batch)."""
    require("pyarrow")
    reader = read_arrow(object_file(source.path), source.where) if is_url(source.path) else open_arrow(source.path)[1]
    _check_columns(source.where, reader.schema, columns, are_texts)
    row = 0
    for whole in record_batches(reader, source.path):
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
    where: str, cells: Sequence[Any], first_row: int, check: TextCheck
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the rows of a batch in which at least one is not UTF-8."""
    for index in range(len(cells[0])):
        origin = f"{where}, row {first_row + index}"
        try:
            values = tuple(column[index].as_py() for column in cells)
        except UnicodeDecodeError as error:
            check.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        yield origin, values


def _is_text(kind: Any) -> bool:
    types = require("pyarrow").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner))
