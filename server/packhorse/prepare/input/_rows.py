"""Rows as they are read, and the faults that a row may have.

Owns the checks that every row must pass, whatever it was read from, and each fault's reason in the manifest's list of
skipped rows. Leaves the columns that the values come from to `_columns`, and refusing or skipping a bad row to `_base`.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.prepare.input._columns import MOST_AMOUNT

_INT64_MAX = 2**63 - 1


class Fault(IntEnum):
    """What is wrong with a row; `reason` says it in words. The numbers are stored in records of interrupted work."""

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
    """Consecutive rows of one file, not checked yet."""

    lengths: NDArray[np.integer]
    """Length of each row in tokens, any number for a null: integers [n]."""
    null_lengths: NDArray[np.bool_] | None = None
    """Whether each length is null: bool [n]; None if none is."""
    ids: NDArray[np.integer] | None = None
    """Id of each row: integers [n]; None if an id is a row number."""
    null_ids: NDArray[np.bool_] | None = None
    """Whether each id is null: bool [n]; None if none is."""
    groups: NDArray[np.integer] | None = None
    """Group number of each row: integers [n]; None if there is no column of groups."""
    null_groups: NDArray[np.bool_] | None = None
    """Whether each group number is null: bool [n]; None if none is."""
    resources: NDArray[np.integer] | None = None
    """Amount of each of k resources for each row: integers [n, k]; None without resources."""
    null_resources: NDArray[np.bool_] | None = None
    """Whether each amount is null: bool [n, k]; None if none is."""

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "RawRows":
        """Returns the rows with `change` applied to every array; None stays None."""
        others = [None if column is None else change(column) for column in self[1:]]
        return RawRows(change(self.lengths), *others)

    def slice_of(self, first: int, size: int) -> "RawRows":
        """Returns `size` consecutive rows that begin with the row at index `first`."""
        return self.each(lambda column: column[first : first + size])


class Batch(NamedTuple):
    """Rows of one file, in order, without the bad ones."""

    lengths: NDArray[np.int64]
    """Length of each row in tokens, at least 1: int64 [n]."""
    ids: NDArray[np.int64]
    """Id of each row: int64 [n]."""
    first_row: int
    """Number in the file, 0-based, of the first row that was read for the batch."""
    rows: NDArray[np.int64] | None = None
    """Number of each row, counted from `first_row`: int64 [n]; None if no row was skipped, so that it is the index."""
    skipped: NDArray[np.int64] | None = None
    """(number in the file, Fault) of each skipped row: int64 [k, 2]; None if no row was skipped."""
    groups: NDArray[np.int64] | None = None
    """Group number of each row: int64 [n]; None if there is no column of groups."""
    resources: NDArray[np.int64] | None = None
    """Amount of each of k resources for each row: int64 [n, k]; None without resources."""

    def row(self, index: int) -> int:
        """Returns the number in the file of the row at an index of the batch."""
        return self.first_row + (index if self.rows is None else int(self.rows[index]))


def faults_of(raw: RawRows) -> NDArray[np.uint8] | None:
    """Returns the Fault of every row: uint8 [n]; None if no row has any."""
    lengths, ids = raw.lengths, raw.ids
    if not len(lengths):
        return None
    # Most inputs have no fault: None instead of a mask then saves an array of booleans for each kind of fault.
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
    for fault, mask in masks:  # if a row has several faults, the last of this list is reported
        if mask is not None:
            faults[mask] = fault
    return faults if faults.any() else None


def _resource_faults(raw: RawRows) -> list[tuple[Fault, NDArray[np.bool_] | None]]:
    """Returns each fault of resources with the rows that have it: bool [n], or None if no row has."""
    amounts, nulls = raw.resources, raw.null_resources
    if amounts is None:
        return []
    is_high = amounts > MOST_AMOUNT if int(amounts.max()) > MOST_AMOUNT else None
    is_low = amounts < 0 if int(amounts.min()) < 0 else None
    masks = ((Fault.HIGH_RESOURCE, is_high), (Fault.LOW_RESOURCE, is_low), (Fault.NULL_RESOURCE, nulls))
    return [(fault, None if mask is None else np.asarray(mask.any(axis=1))) for fault, mask in masks]


def _beyond_int64(values: NDArray[np.integer] | None) -> NDArray[np.bool_] | None:
    """Returns which values int64 cannot hold: bool [n]; None if it can hold all."""
    if values is None or values.dtype != np.uint64 or int(values.max()) <= _INT64_MAX:
        return None
    return values > _INT64_MAX


def as_amounts(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns a copy of amounts of a resource as int64; one above MOST_AMOUNT, which is refused, stays above it."""
    if values.dtype == np.uint64:  # int64 cannot hold all its values
        values = np.minimum(values, np.uint64(MOST_AMOUNT + 1))
    return np.array(values, dtype=np.int64)


def as_int64(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns a copy of a column as int64, writable, so that kernels are compiled for one type only."""
    return np.array(values, dtype=np.int64)
