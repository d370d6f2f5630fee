"""Arrays whose numbers have 32 or 64 bits, as one type for the compiler: a kernel is compiled once for both.

Owns `Column` and the loops that depend on the width; leaves which column is fetched where to the kernels.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_part
from packhorse.epoch.kernels.instructions import prefetch

_NO_32, _NO_64 = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)


class Column(NamedTuple):
    """Numbers of either width; at most one of the arrays has any."""

    narrow: NDArray[np.uint32]
    wide: NDArray[np.int64]


def written(array: NDArray[np.uint32 | np.int64] | None) -> Column:
    """Returns an array that a kernel writes as a column; None is an empty one."""
    return _column(array, _NO_32, _NO_64)


def read(array: NDArray[np.uint32 | np.int64] | None) -> Column:
    """Returns an array that a kernel reads, and that is `read_only`, as a column; None is an empty one."""
    return _column(array, _READ_32, _READ_64)


def _column(array: Any, no_32: NDArray[np.uint32], no_64: NDArray[np.int64]) -> Column:
    if array is None:
        return Column(no_32, no_64)
    return Column(array, no_64) if array.dtype == np.uint32 else Column(no_32, array)


def _frozen(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


_READ_32, _READ_64 = _frozen(_NO_32), _frozen(_NO_64)


@kernel_part
def fetch_column(entries: Any, num: Any, begin: Any, column: Any, out: Any) -> None:
    """out[begin + i] = column[entries[i]] for the first entries; nothing for an empty column.

    Args:
        entries: words [N].
        num: uint64, how many.
        begin: uint64.
        column: a Column.
        out: a Column, wide where `column` is.
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
def ask_column(entries: Any, first: Any, num: Any, column: Any) -> None:
    """Asks for the memory of some entries of a column, from the given one on."""
    if len(column.wide):
        for i in range(num):
            prefetch(column.wide, entries[first + i])
    elif len(column.narrow):
        for i in range(num):
            prefetch(column.narrow, entries[first + i])
