"""Cutting the rows of a corpus into shards: every so many rows, or by the values of a column.

Leaves preparing the shards to `shard`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import nulls_of, values_of
from packhorse.formats.extras import require
from packhorse.prepare.input import Found, arrow, parquet
from packhorse.topology import checked_integer

_MOST_SHARDS = 10_000
"""The most shards of a corpus."""
_COLUMNS = {"Parquet": parquet.column_of, "Arrow": arrow.column_of}
"""Kind of input → the function that reads a column of one of its files."""
_VALUE_IN_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""What may be part of a shard's name."""
_MOST_VALUES_NAMED = 3
"""The most values that an error names."""


class Cut(NamedTuple):
    """The shards of S rows."""

    names: list[str]
    """Name of each shard, without that of the mixture."""
    shard_of_row: NDArray[np.int64]
    """Number of each row's shard: int64 [S]."""


def by_size(num_rows: int, sequences: int) -> Cut:
    """Cuts every `sequences` rows; the shards' names are numbers, from "0000"."""
    checked_integer("sequences", sequences, 1)
    num_shards = -(-num_rows // sequences)
    _refuse_many_shards(num_shards, f"sequences = {sequences}")
    return Cut([f"{number:04}" for number in range(num_shards)], np.arange(num_rows) // sequences)


def by_value(found: Found, by: str) -> Cut:
    """Cuts by the values of a column; the shards' names are the values as text, sorted.

    Args:
        found: the input's files, with the reader of their kind.
        by: the column's name.

    Raises:
        ValueError: the column is missing, or of another kind; a row has no value; values are too many, or can be no
            part of a folder's name.
    """
    number_of: dict[Any, int] = {}  # value → its number, by first occurrence
    parts: list[NDArray[np.int64]] = []  # number of each row's value
    for column in _column(found, by):
        values = column.dictionary_encode()
        if values.null_count:
            row = sum(map(len, parts)) + int(np.flatnonzero(nulls_of(column))[0])
            raise ValueError(
                f"row {row} has no value in column {by}, and so belongs to no shard: fill such rows in, or leave them "
                "out of the input"
            )
        numbers_here = [number_of.setdefault(value, len(number_of)) for value in values.dictionary.to_pylist()]
        _refuse_many_shards(len(number_of), f"by = {by}")
        parts.append(np.array(numbers_here, dtype=np.int64)[values_of(values.indices)])
    numbers = np.concatenate(parts) if parts else np.empty(0, np.int64)
    _refuse_names(number_of, by)
    names = sorted(map(str, number_of))
    shard_of_name = {name: shard_number for shard_number, name in enumerate(names)}
    shard_of_value = np.array([shard_of_name[str(value)] for value in number_of], dtype=np.int64)
    return Cut(names, shard_of_value[numbers])


def _refuse_names(values: Iterable[Any], by: str) -> None:
    """Refuses values of a column that can be no part of a folder's name; raises a ValueError that shows some."""
    if wrong := [value for value in values if not _VALUE_IN_NAME.fullmatch(str(value))]:
        named = ", ".join(f"{value!r:.100}" for value in wrong[:_MOST_VALUES_NAMED])
        more = f" and {len(wrong) - _MOST_VALUES_NAMED:,} more" if len(wrong) > _MOST_VALUES_NAMED else ""
        raise ValueError(
            f"column {by} has values that can be no part of a folder's name: {named}{more}; write another column, of "
            "letters, digits and ._-, up to 100 of them"
        )


def _column(found: Found, by: str) -> Iterator[Any]:
    """Yields a column of the inputs' files, in the order of their rows, as Arrow arrays; see `by_value` for errors."""
    column_of = _COLUMNS.get(found.reader.kind)
    if column_of is None:
        raise ValueError(
            f"by = {by} names a column of {' or '.join(_COLUMNS)} files, and the input is {found.reader.kind}; give "
            "sequences, or prepare each part by itself"
        )
    types = require("pyarrow").types
    for path in found.paths:
        for column in column_of(path, by):
            if types.is_nested(column.type):
                raise ValueError(f"column {by} holds {column.type}; shards are cut by strings or integers")
            is_encoded = types.is_dictionary(column.type)  # decoded, because it may have values that no row has
            yield column.dictionary_decode() if is_encoded else column


def _refuse_many_shards(num_shards: int, argument: str) -> None:
    """Raises a ValueError if there are too many shards; `argument` is "NAME = VALUE" of what asks for them."""
    if num_shards > _MOST_SHARDS:
        raise ValueError(f"{argument} makes more than {_MOST_SHARDS:,} shards: cut more coarsely")
