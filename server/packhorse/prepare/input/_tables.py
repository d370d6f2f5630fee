"""Choosing the columns of a table, and checking their types.

Owns the choice for everything that has an Arrow schema, and which column evidently holds lengths, for MDS too. Leaves
reading the columns to `_arrow_rows`, keys to `_key_columns`, and the columns as a user names them to `_columns`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from packhorse.formats import require
from packhorse.formats.arrow import column_type, evident_column, is_token_list
from packhorse.formats.name_lists import listed
from packhorse.parameters import parameter
from packhorse.prepare.input._arrow_rows import is_amount
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._key_columns import are_keys

_USUAL_LENGTHS = ("length", "lengths", "num_tokens", "n_tokens", "token_count", "seq_len")
"""Names of columns that are taken for lengths if the user names none."""


class ChosenColumns(NamedTuple):
    """The columns of a table that are read."""

    columns: InputColumns
    """The columns, with `length` chosen, and the column of keys told from one of ids."""
    is_list: bool
    """Whether the length column holds lists of tokens."""


def columns_of_file(
    schema: Any, columns: InputColumns, where: str, *, is_first: bool, exceeds_int64: Callable[[str], bool]
) -> ChosenColumns:
    """Returns what `chosen_columns` does, for one of the files of an input.

    Args:
        schema: the file's Arrow schema.
        columns: the columns as the user named them, or for a later file, as they were chosen in the file before.
        where: the file's name, for messages.
        is_first: whether it is the first file, in which keys are told from ids for all files.
        exceeds_int64: as for `chosen_columns`, over all files.

    Raises:
        ValueError: as `chosen_columns` does, or a later file holds keys instead of ids, or the other way round.
    """
    if is_first:
        return chosen_columns(schema, columns, where, exceeds_int64=exceeds_int64)
    # Without `exceeds_int64`: the first file has decided it for all, and `columns` has the column as `key` or `id`.
    chosen = chosen_columns(schema, columns, where)
    key, id_column = chosen.columns.key, chosen.columns.id
    if columns.key != key:
        here, there = ("integers", "keys") if key is None else ("keys", "integers")
        raise ValueError(
            f"{where}: column {key or id_column!r} holds {here}, and in the files before it {there}: give files that "
            "are alike"
        )
    return chosen


def column_exceeds_int64(paths: Sequence[str], column_of: Callable[[str, str], Iterator[Any]], name: str) -> bool:
    """Returns whether a column of integers has a value of 2^63 or more in any of the files.

    Args:
        paths: the files.
        column_of: a function that yields a file's column of a name, as Arrow arrays.
        name: the column.
    """
    chunks = (values for path in paths for values in column_of(path, name))
    return any(int(require("pyarrow.compute").max(values).as_py() or 0) >= 2**63 for values in chunks)


def chosen_columns(
    schema: Any, columns: InputColumns, where: str, *, exceeds_int64: Callable[[str], bool] = lambda _: False
) -> ChosenColumns:
    """Returns the columns to read.

    Args:
        schema: an Arrow schema.
        columns: the columns as the user named them, or as they were chosen in another file.
        where: the name of the data, for messages.
        exceeds_int64: a function from the name of a column of uint64 to whether it has values that int64 cannot hold.
            Such a column holds keys instead of ids. By default it is taken to hold ids, unless it is named as keys.

    Raises:
        ValueError: a column is missing, ambiguous, there twice, or of another type.
    """
    length = _chosen_length(schema, where) if columns.length is None else columns.length
    length_type = column_type(schema, length, where)
    is_list = is_tokens(length_type)
    if not (is_list or require("pyarrow").types.is_integer(length_type)):
        raise ValueError(
            f"{where}: column {length!r} holds {length_type}, but integers (lengths in tokens) or lists of integers "
            "(the tokens) are needed"
        )
    with_keys = _with_keys(schema, columns, where, exceeds_int64)
    _check_groups_and_resources(schema, columns, where)
    return ChosenColumns(replace(with_keys, length=length), is_list)


def _chosen_length(schema: Any, where: str) -> str:
    """Returns the column of lengths or tokens if it is evident; otherwise raises a ValueError."""
    is_integer = require("pyarrow").types.is_integer
    lists = [field.name for field in schema if is_tokens(field.type)]
    integers = [field.name for field in schema if is_integer(field.type)]
    length = evident_column(lists) or evident_lengths(lists, integers)
    if length is None:
        raise ValueError(
            f"{where}: which column holds the tokens is not evident; "
            + parameter("length_column")
            + " must name one, of lengths or of lists of tokens. Its columns are: "
            f"{listed(f'{field.name!r} ({field.type})' for field in schema)}"
        )
    return length


def _check_groups_and_resources(schema: Any, columns: InputColumns, where: str) -> None:
    """Raises a ValueError if a column of groups or of a resource is missing, or of another type."""
    if columns.group is not None:
        group_type = column_type(schema, columns.group, where)
        if not require("pyarrow").types.is_integer(group_type):
            raise ValueError(
                f"{where}: column {columns.group!r} holds {group_type}, but groups are integers: number them, for "
                "example by `pandas.factorize`"
            )
    for name in columns.amounts:
        amount_type = column_type(schema, name, where)
        if not is_amount(amount_type):
            raise ValueError(
                f"{where}: column {name!r} holds {amount_type}, but a resource is a column of integers, of lists of "
                "integers, whose sum counts, or of lists of grids (t, h, w), whose t·h·w are summed"
            )


def evident_lengths(lists: Sequence[str], integers: Sequence[str]) -> str | None:
    """Returns the column of integers with a usual name for lengths, if there is exactly one and no column of lists.

    Otherwise it returns None: a column of lists may hold the tokens, so the user must choose.

    Example:
        >>> evident_lengths([], ["id", "num_tokens"]), evident_lengths(["text_ids"], ["id", "num_tokens"])
        ('num_tokens', None)
    """
    usual = [name for name in integers if name in _USUAL_LENGTHS]
    return usual[0] if len(usual) == 1 and not lists else None


def _with_keys(schema: Any, columns: InputColumns, where: str, exceeds_int64: Callable[[str], bool]) -> InputColumns:
    """Returns the columns with the column that names sequences as `id` or as `key`, whichever its values are.

    Integers are ids, except those of a column of uint64 that is a key already or has values beyond int64.
    """
    name = columns.id if columns.key is None else columns.key
    if name is None:
        return columns
    found = column_type(schema, name, where)
    types = require("pyarrow").types
    if types.is_uint64(found) and (columns.key is not None or exceeds_int64(name)):
        return replace(columns, id=None, key=name)
    if types.is_integer(found):
        return replace(columns, id=name, key=None)
    if not are_keys(found):
        raise ValueError(
            f"{where}: column {name!r} holds {found}, but sequences are named by integers, or by keys: text, UUIDs, or "
            "decimals without a fraction; cast the column to text"
        )
    return replace(columns, id=None, key=name)


def is_tokens(arrow_type: Any) -> bool:
    """Returns whether an Arrow type is a list of integers, in any of Arrow's layouts of lists."""
    types = require("pyarrow").types
    is_view = types.is_list_view(arrow_type) or types.is_large_list_view(arrow_type)
    return is_token_list(arrow_type) or bool(is_view and types.is_integer(arrow_type.value_type))
