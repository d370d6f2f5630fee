"""Packing by descending length on groups of equal bins.

Owns the two loops that the decreasing packers share: one fills a bin before it turns to the next, one deals a length
out bin by bin. A packer is a loop and the order in which it takes bins; checks are its callers'.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Optional

from packhorse.packing.plan import Template


class _Runs(NamedTuple):
    """What a bin holds, as a list from its last run of equal lengths to its first."""

    earlier: Optional["_Runs"]
    length: int
    copies: int


class Group(NamedTuple):
    """Equal bins, opened one after the other."""

    room: int
    """Free tokens in each."""
    first: int
    """Number of the first of them in the order of opening; the others follow it."""
    stamp: int
    """When they were last touched, ascending."""
    num_bins: int
    """How many."""
    size: int
    """Sequences in each."""
    runs: _Runs | None
    """Their contents."""


Key = Callable[[Group], tuple[int, int]]
"""Bins with the smallest key are taken first; distinct for distinct groups."""


def fill_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key) -> Counter[Template]:
    """Packs longest first, each bin taking as many of a length as it can before the next bin's turn.

    A length then fills whole groups and leaves at most three new ones behind: O(distinct lengths · log).

    Args:
        pairs: (length, count) by descending length.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.
        key: which bin of those with room is taken first.
    """
    open_groups: list[tuple[tuple[int, int], Group]] = []  # with room for the length in hand
    waiting: list[tuple[int, int, Group]] = []  # most room first: shorter lengths will fit
    closed: list[Group] = []
    num_opened = 0
    stamp = 0

    def put_back(group: Group, length: int) -> None:
        if group.size == limit or not group.room:
            closed.append(group)
        elif group.room >= length:
            heapq.heappush(open_groups, (key(group), group))
        else:
            heapq.heappush(waiting, (-group.room, group.first, group))

    for length, count in pairs:
        while waiting and -waiting[0][0] >= length:
            group = heapq.heappop(waiting)[2]
            heapq.heappush(open_groups, (key(group), group))
        while count:
            if open_groups:
                room, first, _, num_bins, size, runs = group = heapq.heappop(open_groups)[1]
                copies = min(room // length, limit - size)
            else:
                copies = min(capacity // length, limit)
                room, first, num_bins, size, runs = capacity, num_opened, -(-count // copies), 0, None
                num_opened += num_bins
                group = Group(room, first, stamp, num_bins, size, runs)
            stamp += 1
            num_full = min(num_bins, count // copies)
            if num_full:
                rest_of_room = room - copies * length
                put_back(
                    Group(rest_of_room, first, stamp, num_full, size + copies, _Runs(runs, length, copies)), length
                )
                count -= num_full * copies
            num_used = num_full
            if num_used < num_bins and count:
                stamp += 1
                rest_of_room = room - count * length
                put_back(
                    Group(rest_of_room, first + num_used, stamp, 1, size + count, _Runs(runs, length, count)), length
                )
                num_used += 1
                count = 0
            if num_used < num_bins:
                put_back(group._replace(first=first + num_used, num_bins=num_bins - num_used), length)
    return _templates((*closed, *(entry[1] for entry in open_groups), *(entry[2] for entry in waiting)))


class Dealer:
    """Open bins that sequences are dealt to one by one, each to the bin with the smallest key.

    Equal bins take one sequence each, in turn, so a group moves as one. A length may move every group, and more than
    once; but a group never moves more often than it has sequences at the end.

    Args:
        limit: the most sequences in a bin.
        key: which bin is taken first; must put those with the most room first.
    """

    def __init__(self, limit: int, key: Key) -> None:
        self._limit = limit
        self._key = key
        self._open: list[tuple[tuple[int, int], Group]] = []
        self._closed: list[Group] = []
        self._num_opened = 0
        self._stamp = 0

    def open_bins(self, num_bins: int, capacity: int, length: int = 0, copies: int = 0) -> None:
        """Opens equal bins of `capacity` tokens, with `copies` sequences of a length in each."""
        self._stamp += 1
        runs = _Runs(None, length, copies) if copies else None
        self._put_back(Group(capacity - copies * length, self._num_opened, self._stamp, num_bins, copies, runs))
        self._num_opened += num_bins

    def deal(self, length: int, count: int) -> int:
        """Deals sequences of a length to the open bins; returns how many of them fit nowhere."""
        while count and self._open and self._open[0][1].room >= length:
            self._stamp += 1
            group = heapq.heappop(self._open)[1]
            num_used = min(group.num_bins, count)
            runs = group.runs
            if runs is not None and runs.length == length:
                runs = runs._replace(copies=runs.copies + 1)
            else:
                runs = _Runs(runs, length, 1)
            self._put_back(Group(group.room - length, group.first, self._stamp, num_used, group.size + 1, runs))
            if num_used < group.num_bins:
                self._put_back(group._replace(first=group.first + num_used, num_bins=group.num_bins - num_used))
            count -= num_used
        return count

    def templates(self) -> Counter[Template]:
        """Returns all bins that hold something: template → multiplicity."""
        return _templates(group for group in (*self._closed, *(entry[1] for entry in self._open)) if group.size)

    def _put_back(self, group: Group) -> None:
        if group.size == self._limit or not group.room:
            self._closed.append(group)
        else:
            heapq.heappush(self._open, (self._key(group), group))


def spread_decreasing(
    pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key, *, one_per_new_bin: bool
) -> Counter[Template]:
    """Packs longest first, each sequence alone into the bin with the smallest key; see `Dealer`.

    Args:
        pairs: (length, count) by descending length.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.
        key: which bin is taken first; must put those with the most room first.
        one_per_new_bin: opens a bin for each sequence that fits nowhere, rather than when the last one opened is full.
    """
    dealer = Dealer(limit, key)
    for length, count in pairs:
        left = dealer.deal(length, count)
        copies = 1 if one_per_new_bin else min(capacity // length, limit)
        if left >= copies:
            dealer.open_bins(left // copies, capacity, length, copies)
        if left % copies:  # too few for a full bin; those opened before have no room for another
            dealer.open_bins(1, capacity, length, left % copies)
    return dealer.templates()


def _templates(groups: Iterable[Group]) -> Counter[Template]:
    templates: Counter[Template] = Counter()
    for group in groups:
        template: list[int] = []
        runs = group.runs
        while runs is not None:
            template.extend([runs.length] * runs.copies)
            runs = runs.earlier
        templates[tuple(reversed(template))] += group.num_bins
    return templates
