"""`Column`: one type for arrays of 32 and of 64 bits, so that a kernel is compiled once for both.

Owns making columns, and the loops that read their entries. Leaves which entries are read to `plan_kernels`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_part
from packhorse.epoch.bins import read_only
from packhorse.epoch.vector_instructions import prefetch

_NO_32, _NO_64 = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)
_READ_32, _READ_64 = read_only(_NO_32), read_only(_NO_64)


class Column(NamedTuple):
    """An array of numbers of either width; the field of the other width is empty."""

    narrow: NDArray[np.uint32]
    """The array if it is of 32 bits."""
    wide: NDArray[np.int64]
    """The array if it is of 64 bits."""


def column_to_write(array: NDArray[np.uint32 | np.int64] | None) -> Column:
    """Returns the column of an array that a kernel writes; an empty column for None."""
    return _column(array, _NO_32, _NO_64)


def column_to_read(array: NDArray[np.uint32 | np.int64] | None) -> Column:
    """Returns the column of a `read_only` array that a kernel reads; an empty column for None."""
    return _column(array, _READ_32, _READ_64)


def _column(array: Any, no_32: NDArray[np.uint32], no_64: NDArray[np.int64]) -> Column:
    """Returns the column of an array; the other field gets one of the two empty arrays."""
    if array is None:
        return Column(no_32, no_64)
    return Column(array, no_64) if array.dtype == np.uint32 else Column(no_32, array)


@kernel_part
def fetch_column(entries: Any, num: Any, begin: Any, column: Any, out: Any) -> None:
    """Writes out[begin + i] = column[entries[i]] for the first `num` entries; does nothing for an empty column.

    `column` and `out` are Columns; if `column` is wide or empty, so is `out`.
    """
    if len(column.wide):
        for i in range(num):
            out.wide[begin + i] = column.wide[entries[i]]
    elif len(out.narrow):
        for i in range(num):
            out.narrow[begin + i] = column.narrow[entries[i]]
    elif len(column.narrow):
        for i in range(num):
            out.wide[begin + i] = column.narrow[entries[i]]


@kernel_part
def prefetch_column(entries: Any, first: Any, num: Any, column: Any) -> None:
    """Prefetches the memory of `num` entries of a Column, from entries[first] on."""
    if len(column.wide):
        for i in range(num):
            prefetch(column.wide, entries[first + i])
    elif len(column.narrow):
        for i in range(num):
            prefetch(column.narrow, entries[first + i])
