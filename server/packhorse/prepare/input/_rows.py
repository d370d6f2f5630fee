"""Rows as they are read, and their faults.

Owns the checks that every row has to pass whatever it was read from, and what a row that fails is called. Which columns
they come from is in `_columns`.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.prepare.input._columns import MOST_RESOURCE

_INT64_MAX = 2**63 - 1


class Fault(IntEnum):
    """What is wrong with a row."""

    NONE = 0
    NULL_LENGTH = 1
    SHORT_LENGTH = 2
    LONG_LENGTH = 3
    NULL_ID = 4
    LONG_ID = 5
    NULL_GROUP = 6
    LONG_GROUP = 7
    NULL_RESOURCE = 8
    LOW_RESOURCE = 9
    HIGH_RESOURCE = 10

    @property
    def reason(self) -> str:
        """The fault in words."""
        return _REASONS[self]


_REASONS = {
    Fault.NONE: "nothing",
    Fault.NULL_LENGTH: "the length is null",
    Fault.SHORT_LENGTH: "the length is below 1 token",
    Fault.LONG_LENGTH: "the length is beyond int64",
    Fault.NULL_ID: "the id is null",
    Fault.LONG_ID: "the id is beyond int64",
    Fault.NULL_GROUP: "the group is null",
    Fault.LONG_GROUP: "the group is beyond int64",
    Fault.NULL_RESOURCE: "a resource is null",
    Fault.LOW_RESOURCE: "a resource is negative",
    Fault.HIGH_RESOURCE: "a resource is over 2^31",
}


class RawRows(NamedTuple):
    """Consecutive rows of one file, unchecked."""

    lengths: NDArray[np.integer]
    """Integers [n], anything where they are null."""
    null_lengths: NDArray[np.bool_] | None = None
    """bool [n]; None if none is null."""
    ids: NDArray[np.integer] | None = None
    """Integers [n]; None if an id is a row number."""
    null_ids: NDArray[np.bool_] | None = None
    """bool [n]; None if none is null."""
    groups: NDArray[np.integer] | None = None
    """Integers [n]; None if no column says which rows are a group."""
    null_groups: NDArray[np.bool_] | None = None
    """bool [n]; None if none is null."""
    resources: NDArray[np.integer] | None = None
    """Integers [n, k], of k resources; None without any."""
    null_resources: NDArray[np.bool_] | None = None
    """bool [n, k]; None if none is null."""

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "RawRows":
        """Returns the rows with the same done to each column that is there."""
        others = [None if column is None else change(column) for column in self[1:]]
        return RawRows(change(self.lengths), *others)

    def part(self, first: int, size: int) -> "RawRows":
        """Returns `size` consecutive rows from the row `first` on."""
        return self.each(lambda column: column[first : first + size])


class Batch(NamedTuple):
    """Some rows of one file, in order, all of them sound."""

    lengths: NDArray[np.int64]
    """int64 [n], each at least 1."""
    ids: NDArray[np.int64]
    """int64 [n]."""
    first_row: int
    """Row of the file, 0-based, that the batch was read from."""
    rows: NDArray[np.int64] | None = None
    """Row of each, counted from `first_row`: int64 [n]; None if no row was skipped, so that it is its index."""
    skipped: NDArray[np.int64] | None = None
    """(row of the file, Fault) of those that were skipped: int64 [k, 2]; None without any."""
    groups: NDArray[np.int64] | None = None
    """int64 [n]; None if no column says which rows are a group."""
    resources: NDArray[np.int64] | None = None
    """int64 [n, k], of k resources; None without any."""

    def row(self, index: int) -> int:
        """Returns the row of the file of one sequence of the batch."""
        return self.first_row + (index if self.rows is None else int(self.rows[index]))


def faults_of(raw: RawRows) -> NDArray[np.uint8] | None:
    """Returns the Fault of every row: uint8 [n]; None if all are sound."""
    lengths, ids = raw.lengths, raw.ids
    if not len(lengths):
        return None
    masks = [
        *_resource_faults(raw),
        (Fault.LONG_GROUP, _beyond_int64(raw.groups)),
        (Fault.NULL_GROUP, raw.null_groups),
        (Fault.LONG_ID, _beyond_int64(ids)),
        (Fault.NULL_ID, raw.null_ids),
        (Fault.LONG_LENGTH, _beyond_int64(lengths)),
        (Fault.SHORT_LENGTH, lengths < 1 if int(lengths.min()) < 1 else None),
        (Fault.NULL_LENGTH, raw.null_lengths),
    ]
    if all(mask is None for _, mask in masks):
        return None
    faults = np.zeros(len(lengths), dtype=np.uint8)
    for fault, mask in masks:  # the last one is reported where a row has several
        if mask is not None:
            faults[mask] = fault
    return faults if faults.any() else None


def _resource_faults(raw: RawRows) -> list[tuple[Fault, NDArray[np.bool_] | None]]:
    amounts, nulls = raw.resources, raw.null_resources
    if amounts is None:
        return []
    is_high = amounts > MOST_RESOURCE if int(amounts.max()) > MOST_RESOURCE else None
    is_low = amounts < 0 if int(amounts.min()) < 0 else None
    found = ((Fault.HIGH_RESOURCE, is_high), (Fault.LOW_RESOURCE, is_low), (Fault.NULL_RESOURCE, nulls))
    return [(fault, None if mask is None else np.asarray(mask.any(axis=1))) for fault, mask in found]


def as_amounts(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns amounts of a resource as int64; one that int64 cannot hold stays too high for any."""
    most = np.uint64(MOST_RESOURCE + 1)
    return np.array(np.minimum(values, most) if values.dtype == np.uint64 else values, dtype=np.int64)


def _beyond_int64(values: NDArray[np.integer] | None) -> NDArray[np.bool_] | None:
    if values is None or values.dtype != np.uint64 or int(values.max()) <= _INT64_MAX:
        return None
    return values > _INT64_MAX


def as_int64(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns a copy of a column of sound rows: kernels see one type, writable or not."""
    return np.array(values, dtype=np.int64)
