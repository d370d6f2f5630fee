"""Best-fit-decreasing on groups of equal bins.

Owns the packer that `auto` starts with: the same bins as placing one sequence after the other, longest first, each
into the fullest bin that still takes it, in O(distinct lengths · log). Leaves checks and bounds to its callers.
"""

import heapq
from collections import Counter
from typing import Any

from packhorse.packing.plan import Template

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
