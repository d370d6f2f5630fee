"""Packers of a histogram that put as many sequences of a length into a bin as fit before the next bin takes one.

These are best-fit and packers by another key. A packer that goes through the sequences by descending length makes many
equal bins. Kept as one group (a set of equal bins, not of sequences), they take sequences together, so best-fit gives
the same bins in O(distinct lengths · log) instead of a step for each sequence.

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
"""The content of a bin as a linked list: (the content before, length, copies); None for an empty bin. Bins share what
they have in common."""
_GroupByRoom = tuple[int, int, int, int, Chain]
"""Equal bins: (room in tokens, stamp, size, number of bins, content). `size` is the number of sequences in each bin.
The stamp counts changes; it is distinct, and orders groups with equal room by age."""


def best_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence, longest first, into the fullest bin with room; of equal ones, into the one changed earliest.

    A bin that takes a sequence is the fullest of all then, and takes the next ones of this length too. So a length
    fills whole groups of equal bins at once. Only the last group that it comes to is split, into at most three: bins
    that took as many as fit, one that took the rest, and bins that took none.

    `fill_decreasing` by the key (room, stamp) gives the same templates. This loop needs a third less time, because it
    calls no key.
    """
    open_groups: list[_GroupByRoom] = []  # heap, least room first: groups with room for the current length
    waiting: list[tuple[int, _GroupByRoom]] = []  # heap of (-room, group): only shorter lengths fit into it
    closed: list[tuple[int, Chain]] = []  # (number of bins, content)
    stamp = 0

    def put_back(length: int, room: int, stamp: int, size: int, num_bins: int, content: Chain) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
        if size == limit or not room:
            closed.append((num_bins, content))
        elif room >= length:
            heapq.heappush(open_groups, (room, stamp, size, num_bins, content))
        else:
            heapq.heappush(waiting, (-room, (room, stamp, size, num_bins, content)))

    for length, count in pairs:
        while waiting and -waiting[0][0] >= length:
            _, group = heapq.heappop(waiting)
            heapq.heappush(open_groups, group)
        while count:
            if open_groups:
                room, old_stamp, size, num_bins, content = heapq.heappop(open_groups)
            else:  # more empty bins than can be needed; those that stay empty are forgotten
                room, old_stamp, size, num_bins, content = capacity, stamp, 0, count, None
            copies = room // length
            if copies > limit - size:  # an `if` takes less time here than `min`
                copies = limit - size
            num_full = count // copies
            if num_full > num_bins:
                num_full = num_bins
            count -= num_full * copies
            if num_full:
                put_back(length, room - copies * length, stamp, size + copies, num_full, (content, length, copies))
            num_bins -= num_full
            if num_bins and count:
                put_back(length, room - count * length, stamp + 1, size + count, 1, (content, length, count))
                num_bins -= 1
                count = 0
            stamp += 2  # both of them may be in use now
            if num_bins and size:  # bins that took none are as they were, and keep their stamp
                heapq.heappush(open_groups, (room, old_stamp, size, num_bins, content))

    not_full = (*open_groups, *(group for _, group in waiting))
    return templates_of([*closed, *((num_bins, content) for *_, num_bins, content in not_full)])


KeyedGroup = tuple[tuple[int, int], int, int, int, int, int, Chain]
"""Equal bins that were opened one after another: (key, room in tokens, first, stamp of their last change, size, number
of bins, content). `first` is the number of the first bin in the order of opening, `size` the sequences in each bin."""

Key = Callable[[int, int, int], tuple[int, int]]
"""A packer's preference: (room, first, stamp), as in `KeyedGroup` → key. The group with the smallest key takes
sequences first; keys are distinct."""


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
        key: the packer's preference. Among the bins with room, those with the smallest key are filled first.

    Returns:
        Template → multiplicity.
    """
    open_groups: list[KeyedGroup] = []  # heap, smallest key first: groups with room for the current length
    waiting: list[tuple[int, int, KeyedGroup]] = []  # heap of (-room, first, group): only shorter lengths fit into it
    closed: list[tuple[int, Chain]] = []  # (number of bins, content)
    num_opened = 0
    stamp = 0

    def put_back(length: int, room: int, first: int, stamp: int, size: int, num_bins: int, content: Chain) -> None:
        """Adds a group to the list that it belongs to while sequences of `length` are packed."""
        group = (key(room, first, stamp), room, first, stamp, size, num_bins, content)
        if size == limit or not room:
            closed.append((num_bins, content))
        elif room >= length:
            heapq.heappush(open_groups, group)
        else:
            heapq.heappush(waiting, (-room, first, group))

    for length, count in pairs:
        while waiting and -waiting[0][0] >= length:
            _, _, group = heapq.heappop(waiting)
            heapq.heappush(open_groups, group)
        while count:
            if open_groups:
                _, room, first, old_stamp, size, num_bins, content = heapq.heappop(open_groups)
                copies = min(room // length, limit - size)
            else:
                copies = min(capacity // length, limit)
                room, first, old_stamp, size, content = capacity, num_opened, stamp, 0, None
                num_bins = -(-count // copies)
                num_opened += num_bins
            num_full = min(num_bins, count // copies)
            if num_full:
                stamp += 1
                filled = (content, length, copies)
                put_back(length, room - copies * length, first, stamp, size + copies, num_full, filled)
                count -= num_full * copies
                first += num_full
                num_bins -= num_full
            if num_bins and count:
                stamp += 1
                filled = (content, length, count)
                put_back(length, room - count * length, first, stamp, size + count, 1, filled)
                count = 0
                first += 1
                num_bins -= 1
            if num_bins:
                put_back(length, room, first, old_stamp, size, num_bins, content)
    not_full = (*open_groups, *(group for _, _, group in waiting))
    return templates_of([*closed, *((num_bins, content) for *_, num_bins, content in not_full)])


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs by worst-fit, but a chosen bin takes as many of the length as it can: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room_first)


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


def most_room_first(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Returns the key, as a `Key` does, by which most room comes first, and of equal rooms the bin opened earliest."""
    return -room, first
