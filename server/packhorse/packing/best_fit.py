"""Packers on groups of equal bins: best-fit-decreasing, and balanced packing.

Owns the packer that `auto` starts with: the same bins as placing one sequence after the other, longest first, each
into the fullest bin that still takes it, in O(distinct lengths · log). Leaves checks and bounds to its callers.
"""

import heapq
from collections import Counter
from typing import Any

from packhorse.packing._bin_groups import Dealer
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Packing, Template
from packhorse.packing.reference import most_room

_Runs = tuple[Any, int, int] | None
"""What a bin holds: (earlier runs, length, copies), a chain from its last run of equal lengths to its first, so that
bins that part ways share what they have in common."""
_Group = tuple[int, int, int, int, _Runs]
"""Equal bins: (room in tokens, stamp, number of bins, sequences in each, their contents). Stamps are distinct."""


def best_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs.

    A sequence goes into the fullest bin with room for it; among equally full bins, into the one that was touched
    first. Whatever bin takes one sequence of a length is then the fullest of all and takes the next ones too, so a
    length fills whole groups of equal bins at once, and leaves at most three new groups behind.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    open_groups: list[_Group] = []  # heap, least room first: groups with room for the length in hand
    waiting: list[tuple[int, _Group]] = []  # heap, most room first: groups that shorter lengths will fit into
    closed: list[_Group] = []
    stamp = 0

    def put_back(group: _Group, length: int) -> None:
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
                room, old_stamp, num_bins, size, runs = heapq.heappop(open_groups)
            else:
                room, old_stamp, num_bins, size, runs = capacity, stamp, count, 0, None
            copies = room // length
            if copies > limit - size:
                copies = limit - size
            num_full = count // copies
            if num_full > num_bins:
                num_full = num_bins
            count -= num_full * copies
            if num_full:
                put_back((room - copies * length, stamp, num_full, size + copies, (runs, length, copies)), length)
            num_bins -= num_full
            if num_bins and count:
                put_back((room - count * length, stamp + 1, 1, size + count, (runs, length, count)), length)
                num_bins -= 1
                count = 0
            stamp += 2
            if num_bins and size:
                heapq.heappush(open_groups, (room, old_stamp, num_bins, size, runs))

    templates: Counter[Template] = Counter()
    for *_, num_bins, _, runs in (*closed, *open_groups, *(entry[1] for entry in waiting)):
        reversed_template: list[int] = []
        while runs:
            runs, length, copies = runs
            if copies == 1:
                reversed_template.append(length)
            else:
                reversed_template += [length] * copies
        templates[tuple(reversed_template[::-1])] += num_bins
    return templates


def balanced(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs into a number of bins that is found by bisection, beginning at the lower bound.

    All bins are open from the start. Each sequence, longest first, goes into the emptiest bin that has fewer than
    `limit`; where one fits nowhere, there are too few bins. Equal bins move as one (see `Dealer`), so the time does not
    grow with the number of sequences.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
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
    """Fills so many bins evenly; None where they do not hold everything."""
    dealer = Dealer(limit, most_room)
    dealer.open_bins(num_bins, capacity)
    if any(dealer.deal(length, count) for length, count in pairs):
        return None
    return dealer.templates()


NEAR_GAP = 5e-5
"""How far above the lower bound, as a share of it, a plan is good enough for "auto"."""


def first_plan(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Packing:
    """Returns best-fit's plan or, where a limit of sequences leaves that far above the bound, the balanced one.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.
    """
    bound = bound_of_pairs(pairs, capacity, limit)
    plan = Packing(templates=best_fit_decreasing(pairs, capacity, limit), algorithm="best-fit", lower_bound=bound)
    if not pairs or is_near(plan) or limit >= capacity // pairs[-1][0]:
        return plan
    templates = balanced(pairs, capacity, limit)
    if templates.total() >= plan.templates.total():
        return plan
    return Packing(templates=templates, algorithm="balanced", lower_bound=bound)


def is_near(plan: Packing) -> bool:
    """Says whether a plan is within `NEAR_GAP` of its lower bound."""
    return plan.templates.total() - plan.lower_bound <= NEAR_GAP * plan.lower_bound
