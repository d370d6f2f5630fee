"""Rows out of JSON, Parquet and Arrow files: columns of chats, or of prompts and responses.

Owns which columns must be there; leaves reading them to `_tables`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.formats.object_store import without_secrets
from packhorse.tokenize._inputs import ROW_KINDS, Found, find_inputs
from packhorse.tokenize._json import json_rows
from packhorse.tokenize._spans import Span
from packhorse.tokenize._tables import table_rows
from packhorse.tokenize.gate import Gate


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
