"""Packers of a histogram that fill a bin before they go to the next one: best-fit, and others by a key.

A packer that goes through the sequences by descending length makes many equal bins. Kept as one group, they take
sequences together, so best-fit gives the same bins in O(distinct lengths · log) instead of a step for each sequence.

Leaves packers that give each bin one sequence in turn to `spreading`, the plan that "auto" starts with to `first_plan`,
packers that exist for comparison to `packhorse.reference_packers`, and names and checks to `registry`.

Every packer takes (length, count) pairs by descending length, as `checked_counts` returns them, the capacity in tokens
and the most sequences in a bin, and returns template → multiplicity.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from packhorse.packing.plan import Template

Chain = tuple[Any, int, int] | None
"""The content of a bin as a linked list: (the content before, length, copies). Bins share what they have in common."""
_GroupByRoom = tuple[int, int, int, int, Chain]
"""Equal bins: (room in tokens, stamp, number of bins, sequences in each, content). The stamp counts changes; it is
distinct, and orders groups with equal room by age."""


def best_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence, longest first, into the fullest bin with room; of equal ones, into the one changed earliest.

    A bin that takes a sequence is the fullest of all then, and takes the next ones of this length too. So a length
    fills whole groups of equal bins at once. Only the last group that it comes to is split, into at most three: bins
    that took as many as fit, one that took the rest, and bins that took none.
    """
    open_groups: list[_GroupByRoom] = []  # heap, least room first: groups with room for the current length
    waiting: list[tuple[int, _GroupByRoom]] = []  # heap, most room first: groups that only shorter lengths fit into
    closed: list[_GroupByRoom] = []
    stamp = 0

    def put_back(group: _GroupByRoom, length: int) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
        room, _, _, size, _ = group
        if size == limit or not room:
            closed.append(group)
        elif room >= length:
            heapq.heappush(open_groups, group)
        else:
            heapq.heappush(waiting, (-room, group))

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

    groups = (*closed, *open_groups, *(group for _, group in waiting))
    return templates_of((num_bins, content) for _, _, num_bins, _, content in groups)


KeyedGroup = tuple[tuple[int, int], int, int, int, int, int, Chain]
"""Equal bins that were opened one after another: (key, room in tokens, number of the first of them in the order of
opening, stamp of their last change, number of bins, sequences in each, content)."""

Key = Callable[[int, int, int], tuple[int, int]]
"""A packer's preference: (room, number of the first bin, stamp), as in `KeyedGroup` → key. The group with the smallest
key takes sequences first; keys are distinct."""


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
    open_groups: list[KeyedGroup] = []  # heap, smallest key first: groups with room for the current length
    waiting: list[tuple[int, int, KeyedGroup]] = []  # heap, most room first: groups that only shorter lengths fit into
    closed: list[KeyedGroup] = []
    num_opened = 0
    stamp = 0

    def put_back(group: KeyedGroup, length: int) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
        _, room, first, _, _, size, _ = group
        if size == limit or not room:
            closed.append(group)
        elif room >= length:
            heapq.heappush(open_groups, group)
        else:
            heapq.heappush(waiting, (-room, first, group))

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
    groups = (*closed, *open_groups, *(group for _, _, group in waiting))
    return templates_of((num_bins, content) for _, _, _, _, num_bins, _, content in groups)


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs by worst-fit, but a chosen bin takes as many of the length as it can: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room)


def templates_of(groups: Iterable[tuple[int, Chain]]) -> Counter[Template]:
    """Returns template → multiplicity, from (number of bins, content) of each group."""
    templates: Counter[Template] = Counter()
    for num_bins, content in groups:
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
