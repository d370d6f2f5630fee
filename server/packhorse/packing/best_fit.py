"""Packers of a histogram that move groups of equal bins at once: best-fit, worst-fit and balanced.

A packer that goes through the sequences by descending length makes many equal bins. Kept as one group, they take
sequences together, so best-fit gives the same bins in O(distinct lengths · log) instead of a step for each sequence.

Owns these packers, the plan that "auto" starts with (`first_plan`), and two loops for packers by other keys:
`fill_decreasing` fills a bin before it goes to the next one, `spread_decreasing` gives each bin one sequence in turn.
Leaves packers that exist for comparison to `packhorse.reference_packers`, and names and checks to `registry`.

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
"""A plan that is at most this share above the lower bound is good enough for "auto"."""

_Chain = tuple[Any, int, int] | None
"""The content of a bin as a linked list: (the content before, length, copies). Bins share what they have in common."""
_FastGroup = tuple[int, int, int, int, _Chain]
"""Equal bins: (room in tokens, stamp, number of bins, sequences in each, content). The stamp counts changes; it is
distinct, and orders groups with equal room by age."""


def best_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence, longest first, into the fullest bin with room; of equal ones, into the one changed earliest.

    A bin that takes a sequence is the fullest of all then, and takes the next ones of this length too. So a length
    fills whole groups of equal bins at once. Only the last group that it comes to is split, into at most three: bins
    that took as many as fit, one that took the rest, and bins that took none.
    """
    open_groups: list[_FastGroup] = []  # heap, least room first: groups with room for the current length
    waiting: list[tuple[int, _FastGroup]] = []  # heap, most room first: groups that only shorter lengths fit into
    closed: list[_FastGroup] = []
    stamp = 0

    def put_back(group: _FastGroup, length: int) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
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
    """Packs into as few bins as possible if sequences are spread evenly; finds their number by bisection.

    For a number of bins, all are open from the start. Each sequence, longest first, goes into the emptiest bin that has
    fewer than `limit` sequences. If one fits nowhere, there are too few bins. Equal bins are one group (see `Dealer`),
    so the time does not grow with the number of sequences.
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
    """Spreads all sequences over `num_bins` bins; None if one fits nowhere."""
    dealer = Dealer(limit, most_room)
    dealer.open_bins(num_bins, capacity)
    if any(dealer.deal(length, count) for length, count in pairs):
        return None
    return dealer.templates()


def first_plan(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Packing:
    """Returns best-fit's plan, or the balanced one if a limit of sequences leaves best-fit far above the bound."""
    bound = bound_of_pairs(pairs, capacity, limit)
    plan = Packing(templates=best_fit_decreasing(pairs, capacity, limit), algorithm="best-fit", lower_bound=bound)
    if not pairs or is_near(plan) or limit >= capacity // pairs[-1][0]:
        return plan
    templates = balanced(pairs, capacity, limit)
    if templates.total() >= plan.templates.total():
        return plan
    return Packing(templates=templates, algorithm="balanced", lower_bound=bound)


def is_near(plan: Packing) -> bool:
    """Returns whether a plan is within `NEAR_GAP` of its lower bound."""
    return plan.templates.total() - plan.lower_bound <= NEAR_GAP * plan.lower_bound


_Group = tuple[tuple[int, int], int, int, int, int, int, _Chain]
"""Equal bins that were opened one after another: (key, room in tokens, number of the first of them in the order of
opening, stamp of their last change, number of bins, sequences in each, content)."""

Key = Callable[[int, int, int], tuple[int, int]]
"""A packer's preference: (room, number of the first bin, stamp), as in `_Group` → key. The group with the smallest key
takes sequences first; keys are distinct."""


def fill_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key) -> Counter[Template]:
    """Packs longest first; a bin takes as many sequences of a length as it can before the next bin takes one.

    So a length fills whole groups of equal bins at once: O(distinct lengths · log).

    Example:
        >>> first_fit = lambda room, first, stamp: (first, 0)
        >>> fill_decreasing([(5, 2), (3, 3)], capacity=8, limit=8, key=first_fit)
        Counter({(5, 3): 2, (3,): 1})

    Args:
        pairs: (length, count) by descending length, as packers get them; not checked.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        key: (room, number of the first bin in the order of opening, stamp of the last change) of equal bins → their
            key. Of the bins with room, those with the smallest key are filled first. Keys are distinct.

    Returns:
        Template → multiplicity.
    """
    open_groups: list[_Group] = []  # heap, smallest key first: groups with room for the current length
    waiting: list[tuple[int, int, _Group]] = []  # heap, most room first: groups that only shorter lengths fit into
    closed: list[_Group] = []
    num_opened = 0
    stamp = 0

    def put_back(group: _Group, length: int) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
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
    """Open bins to which sequences are dealt one by one, each to the bin with the smallest key.

    Keys put the most room first. So equal bins take one sequence each, one after another, and are handled as one group.
    A length may come to a group more than once, but a group is never handled more often than its bins have sequences in
    the end.
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
        """Deals sequences of a length to the open bins; returns how many of them fit into no open bin."""
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
        """Adds a group, see `_Group`, to the closed ones if its bins are full, else to the open ones."""
        group = (self._key(room, first, stamp), room, first, stamp, num_bins, size, content)
        if size == self._limit or not room:
            self._closed.append(group)
        else:
            heapq.heappush(self._open, group)


def spread_decreasing(
    pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key, *, one_per_new_bin: bool
) -> Counter[Template]:
    """Packs longest first, one sequence at a time, each into the bin with the smallest key.

    Example:
        >>> worst_fit = lambda room, first, stamp: (-room, first)
        >>> spread_decreasing([(5, 2), (3, 3)], 16, 16, worst_fit, one_per_new_bin=True)
        Counter({(5, 3): 1, (5, 3, 3): 1})

    Args:
        pairs: (length, count) by descending length, as packers get them; not checked.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        key: as in `fill_decreasing`; it must put the most room first.
        one_per_new_bin: whether every sequence of a length that fits into no earlier bin opens a new one. Otherwise a
            new bin is filled with this length before the next is opened.

    Returns:
        Template → multiplicity.
    """
    dealer = Dealer(limit, key)
    for length, count in pairs:
        left = dealer.deal(length, count)
        copies = 1 if one_per_new_bin else min(capacity // length, limit)
        if left >= copies:
            dealer.open_bins(left // copies, capacity, length, copies)
        if left % copies:  # too few to fill a bin, and the bins opened before are full of this length
            dealer.open_bins(1, capacity, length, left % copies)
    return dealer.templates()


def worst_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence, longest first, into the bin with the most room; of equal ones, into the earliest opened."""
    return spread_decreasing(pairs, capacity, limit, most_room, one_per_new_bin=False)


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs by worst-fit, but a chosen bin takes as many of the length as it can: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room)


def _templates(nums_bins: list[int], contents: list[_Chain]) -> Counter[Template]:
    """Returns template → multiplicity, from the number of bins and the content of each group."""
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
    """Returns a `Key` that puts the most room first, and of equal rooms the bin opened earliest."""
    return -room, first
