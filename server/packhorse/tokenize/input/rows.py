"""Rows of all kinds of files, and the names of their columns.

Owns choosing the reader for a file. JSON is in `json_rows`, and Parquet and Arrow are in `table_rows`. What cells must
hold is in `encoding/row_encoder`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.formats.object_store import without_secrets
from packhorse.tokenize.input.files import ROW_KINDS, TEXT_KINDS, Found, find_inputs
from packhorse.tokenize.input.json_rows import json_rows
from packhorse.tokenize.input.ranges import FileRange, open_parquet
from packhorse.tokenize.input.skipped import Skipped
from packhorse.tokenize.input.table_rows import arrow_reader, table_rows
from packhorse.tokenize.input.text_check import TextCheck

_NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that count as no value."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row that were asked for."""

    origin: object
    """Where the row is; printed, it says the file, and the line or row."""
    values: tuple[Any, ...]
    """One value for each column asked for, the required ones first; None for a missing optional column."""
    others: tuple[str, ...] = ()
    """Names of other columns that hold a value in this row; for a table, of all its other columns."""


def row_files(inputs: Sequence[str | os.PathLike[str]]) -> Found:
    """Returns the files that inputs name, as `find_inputs` does; a ValueError if one has no rows."""
    found = find_inputs(inputs)
    for file in found.files:
        if file.kind in TEXT_KINDS:
            raise ValueError(
                f"{without_secrets(file.path)} has no rows: they are in files that end in {', '.join(ROW_KINDS)}, "
                "those of JSON also compressed (.gz, .zst)"
            )
    return found


def rows_of(
    source: FileRange, columns: Sequence[str], optional_columns: Sequence[str], check: TextCheck, seen: set[str]
) -> Iterator[Row]:
    """Yields the rows of a file, and adds the optional columns that are there to `seen`.

    Memory holds one row of JSON, or one batch of a table.

    Raises:
        ValueError: a table lacks a required column, a file of JSON cannot be parsed, or `check` refuses a row.
    """
    if source.kind in ("Parquet", "Arrow"):
        names = column_names(source)
        present = [column for column in optional_columns if column in names]
        others = tuple(name for name in names if name not in columns and name not in present)
        seen.update(present)
        for origin, values in table_rows(source, (*columns, *present), check):
            optional = dict(zip(present, values[len(columns) :], strict=True))
            yield Row(origin, (*values[: len(columns)], *map(optional.get, optional_columns)), others)
        return
    known = {*columns, *optional_columns}
    for place, row in json_rows(source, columns, check):
        seen.update(column for column in optional_columns if column in row)
        others = tuple(key for key, value in row.items() if key not in known and value not in _NOTHING)
        yield Row(place, tuple(row.get(column) for column in (*columns, *optional_columns)), others)


def column_names(source: FileRange) -> list[str]:
    """Returns the names of a table's columns."""
    if source.kind == "Parquet":
        with open_parquet(source.path) as file:
            return list(file.schema_arrow.names)
    return list(arrow_reader(source).schema.names)


def first_column_names(source: FileRange) -> list[str]:
    """Returns the columns of a table, or the keys of the first row of JSON that can be read; none if there is none."""
    if source.kind in ("Parquet", "Arrow"):
        return column_names(source)
    try:
        _, row = next(json_rows(source, (), TextCheck(undecodable="skip", skipped=Skipped())))
    except (StopIteration, ValueError):  # no row, or many bad ones before it: reading the rows later reports that
        return []
    return list(row) if isinstance(row, dict) else []
