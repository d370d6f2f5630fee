"""Rows out of JSON lines and Parquet files: columns of chats, or of prompts and responses.

Owns which columns must be there; leaves reading them to `_tables`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.formats.object_store import without_secrets
from packhorse.tokenize._inputs import JSON_LINES_SUFFIXES, PARQUET_SUFFIXES, expand_inputs, kind_of
from packhorse.tokenize._parts import Weighed, whole_files
from packhorse.tokenize._spans import Span
from packhorse.tokenize._tables import json_lines, parquet_rows
from packhorse.tokenize.gate import Gate


@dataclass(frozen=True, slots=True)
class Row:
    """Some columns of a JSON line or a Parquet row."""

    origin: object
    """File, and line or row, once it is made a string."""
    values: tuple[Any, ...]
    """One for each column asked for; None where an optional one is missing."""


def row_files(inputs: Sequence[str | os.PathLike[str]]) -> list[Weighed]:
    """Returns the files that inputs name, in order.

    Args:
        inputs: files ending in .jsonl, .ndjson, .parquet or .pq, glob patterns of such, and URLs.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: one is Parquet and pyarrow is not installed.
        ValueError: one is another kind of file.
    """
    paths = expand_inputs(inputs)
    for path in paths:
        if kind_of(path) not in ("JSON lines", "Parquet"):
            suffixes = ", ".join((*JSON_LINES_SUFFIXES, *PARQUET_SUFFIXES))
            raise ValueError(
                f"{without_secrets(path)} has no rows: they come in {suffixes} files; "
                "of a folder, name the files by a quoted pattern such as 'folder/*.jsonl'"
            )
    return whole_files(paths)


def rows_of(
    span: Span, columns: Sequence[str], optional_columns: Sequence[str], gate: Gate, seen: set[str]
) -> Iterator[Row]:
    """Yields columns of a file, or of some of it; memory is one line or one Parquet batch.

    Args:
        span: of JSON lines or Parquet.
        columns: Parquet columns, or keys of each JSON line, that must be there.
        optional_columns: the same, where a JSON line may lack the key.
        gate: leaves out lines and rows that are not UTF-8.
        seen: gets the optional columns that some line has.

    Raises:
        ValueError: a column or key is missing, or a line is not JSON.
    """
    if span.kind == "Parquet":
        for origin, values in parquet_rows(span, (*columns, *optional_columns), gate):
            seen.update(optional_columns)
            yield Row(origin, values)
        return
    for line, row in json_lines(span, columns, gate):
        seen.update(column for column in optional_columns if column in row)
        yield Row(line, tuple(row.get(column) for column in (*columns, *optional_columns)))
