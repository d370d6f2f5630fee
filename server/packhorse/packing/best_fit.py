"""Packers on groups of equal bins: best-fit-decreasing, worst-fit-decreasing, and balanced packing.

Owns the packer that `auto` starts with, in O(distinct lengths · log) the same bins as sequence by sequence, and the
loops that the decreasing packers share: one fills a bin before the next, one deals a length out bin by bin. Leaves
published packers to `packhorse.reference_packers`, checks and bounds to `registry`.

Every packer takes (length, count) pairs by descending length, as `checked_counts` returns them, the capacity in tokens
and the most sequences in a bin, and returns template → multiplicity.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any

from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Packing, Template

NEAR_GAP = 5e-5
"""How far above the lower bound, as a share of it, a plan is good enough for "auto"."""

_Chain = tuple[Any, int, int] | None
"""The content of a bin: (what came before, length, copies), so that bins share what they have in common."""
_FastGroup = tuple[int, int, int, int, _Chain]
"""Equal bins: (room in tokens, distinct stamp, number of bins, sequences in each, content)."""


def best_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence into the fullest bin with room; among equally full bins, into the one touched first.

    A bin that takes one sequence of a length is then the fullest of all and takes the next ones too, so a length fills
    whole groups of equal bins at once, and leaves at most three new groups.
    """
    open_groups: list[_FastGroup] = []  # heap, least room first: groups with room for the length in hand
    waiting: list[tuple[int, _FastGroup]] = []  # heap, most room first: groups that shorter lengths will fit into
    closed: list[_FastGroup] = []
    stamp = 0

    def put_back(group: _FastGroup, length: int) -> None:
        if group[3] == limit or not group[0]:
            closed.append(group)
        elif group[0] >= length:
            heapq.heappush(open_groups, group)
        else:
            heapq.heappush(waiting, (-group[0], group))

    for length, count in pairs:
        while waiting and -waiting[0][0] >= length:
            heapq.heappush(open_groups, heapq.heappop(waiting)[1])
        while count:
            if open_groups:
                room, old_stamp, num_bins, size, content = heapq.heappop(open_groups)
            else:
                room, old_stamp, num_bins, size, content = capacity, stamp, count, 0, None
            copies = room // length
            if copies > limit - size:
                copies = limit - size
            num_full = count // copies
            if num_full > num_bins:
                num_full = num_bins
            count -= num_full * copies
            if num_full:
                put_back((room - copies * length, stamp, num_full, size + copies, (content, length, copies)), length)
            num_bins -= num_full
            if num_bins and count:
                put_back((room - count * length, stamp + 1, 1, size + count, (content, length, count)), length)
                num_bins -= 1
                count = 0
            stamp += 2
            if num_bins and size:
                heapq.heappush(open_groups, (room, old_stamp, num_bins, size, content))

    groups = (*closed, *open_groups, *(entry[1] for entry in waiting))
    return _templates([group[2] for group in groups], [group[4] for group in groups])


def balanced(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs into a number of bins found by bisection, beginning at the lower bound.

    All bins are open from the start. Each sequence, longest first, goes into the emptiest bin that has fewer than
    `limit`; if one fits nowhere, there are too few bins. Equal bins move as one (see `Dealer`), so the time does not
    grow with the number of sequences.
    """
    too_few = bound_of_pairs(pairs, capacity, limit) - 1
    step = 1
    while (found := _into(too_few + step, pairs, capacity, limit)) is None:
        too_few += step
        step *= 2
    enough = too_few + step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        templates = _into(middle, pairs, capacity, limit)
        if templates is None:
            too_few = middle
        else:
            enough, found = middle, templates
    return found


def _into(num_bins: int, pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template] | None:
    """Fills the bins evenly; None if they do not hold everything."""
    dealer = Dealer(limit, most_room)
    dealer.open_bins(num_bins, capacity)
    if any(dealer.deal(length, count) for length, count in pairs):
        return None
    return dealer.templates()


def first_plan(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Packing:
    """Returns best-fit's plan or, where a limit of sequences leaves it far above the bound, the balanced one."""
    bound = bound_of_pairs(pairs, capacity, limit)
    plan = Packing(templates=best_fit_decreasing(pairs, capacity, limit), algorithm="best-fit", lower_bound=bound)
    if not pairs or is_near(plan) or limit >= capacity // pairs[-1][0]:
        return plan
    templates = balanced(pairs, capacity, limit)
    if templates.total() >= plan.templates.total():
        return plan
    return Packing(templates=templates, algorithm="balanced", lower_bound=bound)


def is_near(plan: Packing) -> bool:
    """Whether a plan is within `NEAR_GAP` of its lower bound."""
    return plan.templates.total() - plan.lower_bound <= NEAR_GAP * plan.lower_bound


_Group = tuple[tuple[int, int], int, int, int, int, int, _Chain]
"""Equal bins, opened one after the other: (key, room in tokens, number of the first in the order of opening, stamp of
the last touch, number of bins, sequences in each, content)."""

Key = Callable[[int, int, int], tuple[int, int]]
"""(room, number of the first bin, stamp) → key. The group with the smallest key is taken first; keys are distinct."""


def fill_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key) -> Counter[Template]:
    """Packs longest first; a bin takes as many of a length as it can before the next bin does.

    A length then fills whole groups and leaves at most three new ones: O(distinct lengths · log).

    Example:
        >>> first_fit = lambda room, first, stamp: (first, 0)
        >>> fill_decreasing([(5, 2), (3, 3)], capacity=8, limit=8, key=first_fit)
        Counter({(5, 3): 2, (3,): 1})

    Args:
        pairs: (length, count) by descending length, as packers get them; not checked.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        key: (room, number of the first bin in the order of opening, stamp of the last touch) of equal bins → their key;
            of the bins with room, those with the smallest key are taken first. Keys are distinct.

    Returns:
        Template → multiplicity.
    """
    open_groups: list[_Group] = []  # with room for the length in hand
    waiting: list[tuple[int, int, _Group]] = []  # most room first: shorter lengths will fit
    closed: list[_Group] = []
    num_opened = 0
    stamp = 0

    def put_back(group: _Group, length: int) -> None:
        room = group[1]
        if group[5] == limit or not room:
            closed.append(group)
        elif room >= length:
            heapq.heappush(open_groups, group)
        else:
            heapq.heappush(waiting, (-room, group[2], group))

    for length, count in pairs:
        while waiting and -waiting[0][0] >= length:
            heapq.heappush(open_groups, heapq.heappop(waiting)[2])
        while count:
            if open_groups:
                _, room, first, touched, num_bins, size, content = heapq.heappop(open_groups)
                copies = min(room // length, limit - size)
            else:
                copies = min(capacity // length, limit)
                room, first, touched, size, content = capacity, num_opened, stamp, 0, None
                num_bins = -(-count // copies)
                num_opened += num_bins
            num_full = min(num_bins, count // copies)
            if num_full:
                stamp += 1
                left, filled = room - copies * length, (content, length, copies)
                put_back((key(left, first, stamp), left, first, stamp, num_full, size + copies, filled), length)
                count -= num_full * copies
                first += num_full
                num_bins -= num_full
            if num_bins and count:
                stamp += 1
                left, filled = room - count * length, (content, length, count)
                put_back((key(left, first, stamp), left, first, stamp, 1, size + count, filled), length)
                count = 0
                first += 1
                num_bins -= 1
            if num_bins:
                put_back((key(room, first, touched), room, first, touched, num_bins, size, content), length)
    groups = (*closed, *open_groups, *(entry[2] for entry in waiting))
    return _templates([group[4] for group in groups], [group[6] for group in groups])


class Dealer:
    """Open bins that sequences are dealt to one by one, each to the bin with the smallest key: the most room first.

    Equal bins take one sequence each, one after the other, so a group moves as one. A length may move every group more
    than once, but a group never moves more often than it has sequences at the end.
    """

    def __init__(self, limit: int, key: Key) -> None:
        self._limit = limit
        self._key = key
        self._open: list[_Group] = []
        self._closed: list[_Group] = []
        self._num_opened = 0
        self._stamp = 0

    def open_bins(self, num_bins: int, capacity: int, length: int = 0, copies: int = 0) -> None:
        """Opens equal bins of `capacity` tokens, with `copies` sequences of a length in each."""
        self._stamp += 1
        content = (None, length, copies) if copies else None
        self._put_back(capacity - copies * length, self._num_opened, self._stamp, num_bins, copies, content)
        self._num_opened += num_bins

    def deal(self, length: int, count: int) -> int:
        """Deals sequences of a length to the open bins; returns how many of them fit nowhere."""
        while count and self._open and self._open[0][1] >= length:
            self._stamp += 1
            _, room, first, touched, num_bins, size, content = heapq.heappop(self._open)
            num_used = min(num_bins, count)
            if content is not None and content[1] == length:
                filled = (content[0], length, content[2] + 1)
            else:
                filled = (content, length, 1)
            self._put_back(room - length, first, self._stamp, num_used, size + 1, filled)
            if num_used < num_bins:
                self._put_back(room, first + num_used, touched, num_bins - num_used, size, content)
            count -= num_used
        return count

    def templates(self) -> Counter[Template]:
        """Returns all bins that hold something: template → multiplicity."""
        groups = [group for group in (*self._closed, *self._open) if group[5]]
        return _templates([group[4] for group in groups], [group[6] for group in groups])

    def _put_back(self, room: int, first: int, stamp: int, num_bins: int, size: int, content: _Chain) -> None:
        group = (self._key(room, first, stamp), room, first, stamp, num_bins, size, content)
        if size == self._limit or not room:
            self._closed.append(group)
        else:
            heapq.heappush(self._open, group)


def spread_decreasing(
    pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key, *, one_per_new_bin: bool
) -> Counter[Template]:
    """Packs longest first, each sequence by itself into the bin with the smallest key.

    Example:
        >>> worst_fit = lambda room, first, stamp: (-room, first)
        >>> spread_decreasing([(5, 2), (3, 3)], 16, 16, worst_fit, one_per_new_bin=True)
        Counter({(5, 3): 1, (5, 3, 3): 1})

    Args:
        pairs: (length, count) by descending length, as packers get them; not checked.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        key: as in `fill_decreasing`, the most room first.
        one_per_new_bin: whether each sequence that fits nowhere opens a bin; else only one that finds the last opened
            bin full does.

    Returns:
        Template → multiplicity.
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


def worst_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence into the bin with the most room, the earliest opened of several, as in seqpack."""
    return spread_decreasing(pairs, capacity, limit, most_room, one_per_new_bin=False)


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """As `worst_fit_decreasing`, but a bin that is taken is filled with the length: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room)


def _templates(nums_bins: list[int], contents: list[_Chain]) -> Counter[Template]:
    templates: Counter[Template] = Counter()
    for num_bins, content in zip(nums_bins, contents, strict=True):
        reversed_template: list[int] = []
        while content:
            content, length, copies = content
            if copies == 1:
                reversed_template.append(length)
            else:
                reversed_template += [length] * copies
        templates[tuple(reversed_template[::-1])] += num_bins
    return templates


def most_room(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Orders bins: most room first, of several the one opened earliest."""
    return -room, first
