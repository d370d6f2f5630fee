"""Rows as they are read, and their faults.

Owns the checks that every row has to pass whatever it was read from, and what a row that fails is called.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from packhorse.parameters import parameter
from packhorse.topology import checked_integer

_INT64_MAX = 2**63 - 1

MOST_RESOURCE = 2**31 - 1
"""Of one sequence."""
_MOST_RESOURCES, _MOST_COST = 4, 2**42
_RESOURCE = re.compile(r"([^=]+)=(.+?)(?::(\d*))?(?::(\d+))?")
_USUAL_LENGTHS = ("length", "lengths", "num_tokens", "n_tokens", "token_count", "seq_len")
_NUMBER_AT_END = re.compile(r":[-+.\d]+$")

OnBadRow = Literal["error", "skip"]
"""Treatment of a row that cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What sequences take beside tokens, and how much of it a bin holds.

    Example:
        >>> Resource.parse("tiles=num_tiles:48")
        Resource(name='tiles', column='num_tiles', cap=48, cost=0)
    """

    name: str
    """Name of the resource, such as "tiles"."""
    column: str
    """The input column of each row's amount, in [0, 2^31): an integer; a list of integers, such as the tiles of each
    image, which are summed; or a list of grids (t, h, w), such as `image_grid_thw`, whose products are summed.
    """
    cap: int | None = None
    """The most that a bin may have. By default there is no limit, and the resource is only counted."""
    cost: int = 0
    """Cost of one when ranks are balanced, in the unit of a topology's `cost_linear`: the encoder's work for it,
    divided by the language model's work for a pair of tokens. By default 0.
    """

    def __post_init__(self) -> None:
        """Checks the fields; a ValueError if one is wrong."""
        for name in ("name", "column"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"resource: its {name} must be a text, got {getattr(self, name)!r:.60}")
        if self.name == "tokens":
            raise ValueError(
                "resource: its name is 'tokens', whose cap is " + parameter("max_seq_len") + "; call it something else"
            )
        if self.cap is not None:
            checked_integer(f"the cap of resource {self.name!r}", self.cap, 1, MOST_RESOURCE)
        checked_integer(f"the cost of resource {self.name!r}", self.cost, 0, _MOST_COST)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST; a ValueError if it is something else."""
        found = _RESOURCE.fullmatch(text)
        if found is None or _NUMBER_AT_END.search(found[2]):  # tiles:-5 is a mistyped cap
            raise ValueError(
                parameter("resource")
                + " must be NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST, such as tiles=num_tiles:48, "
                f"got {text!r:.60}"
            )
        name, column, cap, cost = found.groups()
        return cls(name=name, column=column, cap=int(cap) if cap else None, cost=int(cost) if cost else 0)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        cost = f":{self.cost}" if self.cost else ""
        return f"{self.name}={self.column}" + (f":{self.cap or ''}" if self.cap or cost else "") + cost


def evident_lengths(lists: Sequence[str], integers: Sequence[str]) -> str | None:
    """Returns the only column of integers that is called as lengths usually are; None if a list could be the tokens.

    Example:
        >>> evident_lengths([], ["id", "num_tokens"]), evident_lengths(["text_ids"], ["id", "num_tokens"])
        ('num_tokens', None)
    """
    usual = [name for name in integers if name in _USUAL_LENGTHS]
    return usual[0] if len(usual) == 1 and not lists else None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The columns of lengths, ids, groups and resources, and what happens to a bad row."""

    length: str | None = None
    """The column of lengths in tokens, or of lists of tokens. By default the column that holds tokens, chosen as by
    token sources; if there is none, the only column of integers that is called length, lengths, num_tokens, n_tokens,
    token_count or seq_len.
    """
    id: str | None = None
    """The column of ids or keys, each value once in the dataset. Integers are ids. Text, UUIDs and decimals without a
    fraction are keys: ids are then row numbers, and a table maps keys to ids and back. By default an id is the row
    number over all files of all inputs in order, from 0. The keys of a Megatron index are beside it, in `X.keys.arrow`.
    """
    on_bad_row: OnBadRow = "error"
    """"error" refuses a row whose length or id is null, below 1 token or beyond int64; "skip" leaves it out, and the
    manifest lists it. Repeated ids are always refused.
    """
    group: str | None = None
    """The column of groups, set from a `Grouping`; None without one."""
    resources: tuple[Resource, ...] = ()
    """What sequences need besides tokens, such as image tiles. With a cap, no bin has more."""
    key: str | None = None
    """Set if `id` is a column of keys, which are read in a separate pass. Ids are then row numbers."""

    def __post_init__(self) -> None:
        """Checks what a user may give."""
        for name, column in (("length_column", self.length), ("id_column", self.id)):
            if not isinstance(column, str | None):
                raise ValueError(f"{name} must be a column's name, got {column!r:.60}")
        if self.on_bad_row not in get_args(OnBadRow):
            raise ValueError(
                parameter("on_bad_row") + f" must be one of {', '.join(get_args(OnBadRow))}, got {self.on_bad_row!r}"
            )
        if not isinstance(self.resources, tuple) or not all(isinstance(each, Resource) for each in self.resources):
            raise ValueError(parameter("resources") + f" must be a tuple of Resource, got {self.resources!r:.60}")
        names = [each.name for each in self.resources]
        if len(set(names)) < len(names) or len(names) > _MOST_RESOURCES:
            raise ValueError(
                parameter("resources") + f" must be at most {_MOST_RESOURCES} of distinct names, got {', '.join(names)}"
            )

    @property
    def integers(self) -> tuple[str | None, str | None]:
        """Those of plain integers: ids and groups."""
        return self.id, self.group

    @property
    def amounts(self) -> list[str]:
        """Those of resources."""
        return [each.column for each in self.resources]

    @property
    def names(self) -> list[str]:
        """All that are read, each once."""
        names = (self.length, *self.integers, *self.amounts)
        return list(dict.fromkeys(name for name in names if name is not None))


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
