"""Rows out of JSON lines and Parquet files: columns of chats, or of prompts and responses.

Owns which columns must be there; leaves reading them to `_tables`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.tokenize._inputs import JSON_LINES_SUFFIXES, PARQUET_SUFFIXES, expand_inputs, kind_of
from packhorse.tokenize._tables import json_lines, parquet_rows
from packhorse.tokenize.gate import Gate, Skipped, Undecodable


@dataclass(frozen=True, slots=True)
class Row:
    """Some columns of a JSON line or a Parquet row."""

    origin: str
    """File, and line or row."""
    values: tuple[Any, ...]
    """One for each column asked for; None where an optional one is missing."""


def iterate_rows(
    inputs: Sequence[str | os.PathLike[str]],
    columns: Sequence[str],
    optional_columns: Sequence[str] = (),
    *,
    undecodable: Undecodable = "skip",
    skipped: Skipped | None = None,
) -> Iterator[Row]:
    """Yields columns of JSON lines and Parquet files, in the order of the inputs.

    Memory is one line or one Parquet batch.

    Args:
        inputs: files ending in .jsonl, .ndjson, .parquet or .pq, and glob patterns of such.
        columns: Parquet columns, or keys of each JSON line, that must be there.
        optional_columns: the same, where a JSON line may lack the key, but not all of them.
        undecodable: what happens to a line or row that is not UTF-8.
        skipped: counts those while iterating.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: Parquet is read and pyarrow is not installed.
        ValueError: an input is another kind of file, a column or key is missing, or a line is not JSON.
    """
    gate = Gate(undecodable, skipped if skipped is not None else Skipped())
    paths = expand_inputs(inputs)
    never_seen = set(optional_columns)
    for path in paths:
        match kind_of(path):
            case "JSON lines":
                for origin, row in json_lines(path, columns, gate):
                    never_seen.difference_update(row)
                    yield Row(origin, tuple(row.get(column) for column in (*columns, *optional_columns)))
            case "Parquet":
                for origin, values in parquet_rows(path, (*columns, *optional_columns), gate):
                    never_seen.clear()
                    yield Row(origin, values)
            case _:
                raise ValueError(
                    f"{path} has no rows: they come in {', '.join((*JSON_LINES_SUFFIXES, *PARQUET_SUFFIXES))} files; "
                    "of a folder, name the files by a quoted pattern such as 'folder/*.jsonl'"
                )
    if never_seen:
        raise ValueError(f"no line of {paths[0]} has the key {min(never_seen)!r}; correct its name, or leave it out")
