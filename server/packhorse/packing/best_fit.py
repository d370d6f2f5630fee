"""Best-fit-decreasing on groups of equal bins.

Owns the packer that `auto` starts with: the same bins as placing one sequence after the other, longest first, each
into the fullest bin that still takes it, in O(distinct lengths · log). Leaves checks and bounds to its callers.
"""

import heapq
from collections import Counter

from packhorse.packing.plan import Template

_Group = tuple[int, int, int, int, tuple[tuple[int, int], ...]]
"""Equal bins: (room in tokens, stamp, number of bins, sequences in each, runs of (length, copies))."""


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
                room, old_stamp, num_bins, size, runs = capacity, stamp, count, 0, ()
            copies = min(room // length, limit - size)
            num_full = min(num_bins, count // copies)
            count -= num_full * copies
            if num_full:
                put_back((room - copies * length, stamp, num_full, size + copies, (*runs, (length, copies))), length)
            num_bins -= num_full
            if num_bins and count:
                put_back((room - count * length, stamp + 1, 1, size + count, (*runs, (length, count))), length)
                num_bins -= 1
                count = 0
            stamp += 2
            if num_bins and size:
                heapq.heappush(open_groups, (room, old_stamp, num_bins, size, runs))

    templates: Counter[Template] = Counter()
    for group in (*closed, *open_groups, *(entry[1] for entry in waiting)):
        templates[tuple(length for length, copies in group[4] for _ in range(copies))] += group[2]
    return templates
