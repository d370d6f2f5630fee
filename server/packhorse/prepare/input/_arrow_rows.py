"""Arrow columns as rows: lengths, ids, groups, and amounts of resources.

Owns turning Arrow's values and nulls into the arrays of `RawRows`. Which columns are read is chosen in `_tables`, and
the checks of values are in `_rows`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.formats.arrow import nulls_of, values_of
from packhorse.prepare.input._columns import MOST_AMOUNT, InputColumns
from packhorse.prepare.input._rows import RawRows, as_amounts

_GRID_AXES = 3
"""How many numbers a grid has: t, h and w."""
_MOST_LIST_DEPTH = 2
"""Depth of a list of grids."""


def is_amount(kind: Any) -> bool:
    """Returns whether an Arrow type is integers, lists of integers, or lists of lists of integers."""
    types = require("pyarrow").types
    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth <= _MOST_LIST_DEPTH and bool(types.is_integer(kind))


def amounts_of(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Returns each row's amount of a resource, int64 [n], and whether it is null, bool [n], or None if none is.

    An amount is -1 if anything in its list is null, negative or not a grid, and MOST_AMOUNT + 1 or more if it is too
    large; `_rows` refuses both.

    Example:
        >>> import pyarrow
        >>> amounts_of(pyarrow.array([[[1, 4, 6], [1, 2, 2]], []]))[0]
        array([28,  0])

    Args:
        column: an Arrow array of integers; of lists of integers, which are summed; or of lists of grids (t, h, w),
            whose products t·h·w are summed.
    """
    if require("pyarrow").types.is_integer(column.type):
        values, nulls = _values_and_nulls(column)
        return as_amounts(values), nulls
    sizes, inner = _sizes(column), column.flatten()  # [[5, 2], null, [7]] -> [2, 0, 1] and [5, 2, 7]
    if require("pyarrow").types.is_integer(inner.type):
        values = as_amounts(values_of(inner.fill_null(-1)))
    else:
        values = _products(inner)
    ends = np.cumsum(sizes)

    def summed(numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the sum of each row's list, by differences of running sums: int64 [n]."""
        sums = np.concatenate(([0], np.cumsum(numbers, dtype=np.int64)))
        return sums[ends] - sums[ends - sizes]

    num_bad = summed(values < 0)
    amounts = np.where(num_bad > 0, -1, summed(np.minimum(values, MOST_AMOUNT + 1)))
    return amounts, nulls_of(column) if column.null_count else None


def _products(grids: Any) -> NDArray[np.int64]:
    """Returns the product t·h·w of each grid, -1 if it is not three numbers of at least 0: int64 [n]."""
    sizes = _sizes(grids)
    numbers = values_of(grids.flatten().fill_null(-1)).astype(np.float64)  # floats, as a product may be beyond int64
    grid_of_number = np.repeat(np.arange(len(sizes)), sizes)
    products = np.ones(len(sizes))
    np.multiply.at(products, grid_of_number, numbers)
    products[sizes != _GRID_AXES] = -1
    products[grid_of_number[numbers < 0]] = -1
    return np.minimum(products, MOST_AMOUNT + 1).astype(np.int64)


def _sizes(lists: Any) -> NDArray[np.int64]:
    """Returns the length of each list in an Arrow array, 0 for a null."""
    compute = require("pyarrow.compute")
    sizes: NDArray[Any] = compute.fill_null(compute.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64)


def with_other_columns(rows: RawRows, table: Any, columns: InputColumns) -> RawRows:
    """Adds the ids, groups and resources of an Arrow table to rows that have lengths only.

    Args:
        rows: the rows' lengths.
        table: an Arrow table or record batch of the same rows.
        columns: the columns to read.
    """
    if columns.id is not None:
        ids, null_ids = _values_and_nulls(_column_of(table, columns.id))
        rows = rows._replace(ids=ids, null_ids=null_ids)
    if columns.group is not None:
        groups, null_groups = _values_and_nulls(_column_of(table, columns.group))
        rows = rows._replace(groups=groups, null_groups=null_groups)
    if not columns.resources:
        return rows
    resources, null_masks = [], []
    for name in columns.amounts:
        amounts, nulls = amounts_of(_column_of(table, name))
        resources.append(amounts)
        null_masks.append(np.zeros(len(amounts), dtype=np.bool_) if nulls is None else nulls)
    is_null = np.stack(null_masks, axis=1)
    return rows._replace(resources=np.stack(resources, axis=1), null_resources=is_null if is_null.any() else None)


def arrow_lengths(lengths: Any, is_list: bool) -> RawRows:
    """Returns rows with the lengths in an Arrow array.

    Args:
        lengths: an Arrow array of integers, or of lists, whose lengths follow from their offsets.
        is_list: whether it holds lists.
    """
    if is_list:
        lengths = require("pyarrow.compute").list_value_length(lengths)
    return RawRows(*_values_and_nulls(lengths))


def arrow_rows(batch: Any, columns: InputColumns, is_list: bool) -> RawRows:
    """Returns the rows of an Arrow record batch.

    Args:
        batch: the record batch.
        columns: the columns to read.
        is_list: whether the length column holds lists.
    """
    lengths = arrow_lengths(batch.column(batch.schema.get_field_index(columns.length)), is_list)
    return with_other_columns(lengths, batch, columns)


def _column_of(table: Any, name: str) -> Any:
    """Returns a column of an Arrow table or record batch as one Arrow array."""
    column = table.column(table.schema.get_field_index(name))
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column  # a batch's column has no chunks


def _values_and_nulls(array: Any) -> tuple[NDArray[np.integer], NDArray[np.bool_] | None]:
    """Returns an Arrow array's integers, 1 for a null, and whether each is null, or None if none is.

    A null gets 1 so that no other fault is found in it: 1 is right for a length and for an id.
    """
    if not array.null_count:
        return values_of(array), None
    return values_of(array.fill_null(1)), nulls_of(array)
