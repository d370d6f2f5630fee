"""Evening out bins: the same items in the same number of bins, so that bins cost about the same.

A pack is a bin as a set of items without an order. Owns putting items into packs by descending cost, and the exchanges
that even out the result. Leaves the number of packs to the packers, and which rank takes which pack to `epoch/balance`.

Shape letters: M items, d caps (the first is tokens), N packs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel, kernel_part

MOST_WORK = 1 << 28
"""Most pairs of items that are compared, and most items times packs for which items are placed: about half a second
each."""

_PAIRS_PER_SORTED_PACK = 16
"""What sorting the packs by their cost takes for each pack, in compared pairs of items."""

_EVEN_BITS = 12
"""Packs count as even if their costs differ by at most 1 / 2^12 of the mean cost."""


def even_bins(
    indices: NDArray[np.int64],
    bin_ends: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.int64],
    capacities: NDArray[np.int64],
    kinds: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns as many bins of the same items whose costs differ less. A bin has its largest items first.

    Example:
        >>> sizes = np.array([[5], [4], [4], [3]])
        >>> indices, ends = even_bins(np.arange(4), np.array([2, 4]), sizes, sizes[:, 0] ** 2, np.array([9]))
        >>> indices.tolist(), ends.tolist()
        ([0, 3, 1, 2], [2, 4])

    Args:
        indices: the items of all bins, end to end, as indices into `sizes`: int64 [M].
        bin_ends: exclusive end of every bin in `indices`: int64 [N].
        sizes: what each item takes of every cap, tokens first: int64 [M, d].
        costs: cost of each item, at least 0: int64 [M].
        capacities: the caps of a bin: int64 [d].
        kinds: kind of each item: int64 [M]; items of different kinds share no bin. None if all items may share bins.

    Returns:
        `indices` and `bin_ends` of the new bins.
    """
    num_bins = len(bin_ends)
    if not len(indices):
        return indices, bin_ends
    bin_sizes = np.diff(bin_ends, prepend=0)  # [2, 5] -> [2, 3]
    packs = np.empty(len(indices), dtype=np.int64)  # by item
    packs[indices] = np.repeat(np.arange(num_bins), bin_sizes)
    if kinds is None:
        packs = even_packs(sizes, costs, capacities, packs, num_bins)  # empty bins take part too
    else:
        for kind in np.unique(kinds):
            members = np.flatnonzero(kinds == kind)
            bins, index_of_bin = np.unique(packs[members], return_inverse=True)  # bins 3, 7, 3 -> [3, 7] and [0, 1, 0]
            packs[members] = bins[even_packs(sizes[members], costs[members], capacities, index_of_bin, len(bins))]
    order = np.lexsort((-sizes[:, 0], packs))  # by pack, then by descending tokens
    return order, np.cumsum(np.bincount(packs, minlength=num_bins))


def even_packs(
    sizes: NDArray[np.int64],
    costs: NDArray[np.int64],
    capacities: NDArray[np.int64],
    packs: NDArray[np.int64],
    num_packs: int,
) -> NDArray[np.int64]:
    """Puts items into packs so that these cost about the same.

    Items go by descending cost into the cheapest pack with room. If an item fits into none, the given packs are the
    start instead, so no further pack is ever needed. Then packs exchange two items, or one gives an item to another,
    until this brings no two packs nearer that are not even (see `_EVEN_BITS`), or MOST_WORK is done.

    Example:
        >>> sizes = np.array([[5], [4], [4], [3]])
        >>> even_packs(sizes, sizes[:, 0] ** 2, np.array([9]), np.array([0, 0, 1, 1]), 2).tolist()
        [0, 1, 1, 0]

    Args:
        sizes: what each item takes of every cap: int64 [M, d].
        costs: cost of each item, at least 0: int64 [M].
        capacities: the caps of a pack: int64 [d].
        packs: a pack for each item, in [0, N), under which every cap holds: int64 [M].
        num_packs: N, the number of packs.

    Returns:
        The pack of each item, in [0, N): int64 [M].
    """
    order = np.argsort(-costs, kind="stable")  # by descending cost
    sizes, costs = np.ascontiguousarray(sizes[order]), np.ascontiguousarray(costs[order])
    placed = np.empty(len(costs), dtype=np.int64)
    if len(costs) * num_packs > MOST_WORK or not _place(sizes, costs, capacities, num_packs, placed):
        placed = packs[order].copy()
    _exchange(sizes, costs, capacities, num_packs, placed, MOST_WORK)
    even = np.empty_like(placed)
    even[order] = placed  # from the order by cost back to the order given
    return even


@kernel
def _place(sizes: Any, costs: Any, capacities: Any, num_packs: int, placed: Any) -> bool:
    """Puts items of descending cost into the cheapest pack with room; returns False if an item fits into none.

    Args:
        sizes: int64 [M, d].
        costs: int64 [M], descending.
        capacities: int64 [d].
        num_packs: N.
        placed: int64 [M], receives each item's pack.
    """
    num_items, num_caps = sizes.shape
    free = np.empty((num_packs, num_caps), np.int64)
    free[:] = capacities
    pack_costs = np.zeros(num_packs, np.int64)
    for item in range(num_items):
        best = -1
        for pack in range(num_packs):
            if best < 0 or pack_costs[pack] < pack_costs[best]:
                fits = True
                for cap in range(num_caps):
                    fits &= sizes[item, cap] <= free[pack, cap]
                if fits:
                    best = pack
        if best < 0:
            return False
        placed[item] = best
        pack_costs[best] += costs[item]
        for cap in range(num_caps):
            free[best, cap] -= sizes[item, cap]
    return True


@kernel
def _exchange(sizes: Any, costs: Any, capacities: Any, num_packs: int, placed: Any, work_left: int) -> None:
    """Changes `placed`: the most expensive pack exchanges items with the cheapest one that it can, again and again.

    Ends when no exchange brings two packs nearer that are not even, or after `work_left` compared pairs. For the other
    arguments, see `_place`.
    """
    num_items, num_caps = sizes.shape
    free = np.empty((num_packs, num_caps), np.int64)
    free[:] = capacities
    pack_costs = np.zeros(num_packs, np.int64)
    members = [[np.int64(0) for _ in range(0)] for _ in range(num_packs)]  # empty lists of items; Numba needs a type
    for item in range(num_items):
        members[placed[item]].append(np.int64(item))
        pack_costs[placed[item]] += costs[item]
        for cap in range(num_caps):
            free[placed[item], cap] -= sizes[item, cap]
    even_gap = (pack_costs.sum() // num_packs) >> _EVEN_BITS
    is_settled = np.zeros(num_packs, np.bool_)  # packs that had no partner when they were looked at
    has_changed = False  # whether an exchange was made since all packs were last looked at
    while work_left > 0:
        high = -1
        for pack in range(num_packs):
            if not is_settled[pack] and (high < 0 or pack_costs[pack] > pack_costs[high]):
                high = pack
        if high < 0 and not has_changed:
            return
        if high < 0:  # an exchange may have made a partner of a pack that had found none before
            is_settled[:] = False
            has_changed = False
            continue
        is_settled[high] = True
        work_left -= _PAIRS_PER_SORTED_PACK * num_packs
        for low in np.argsort(pack_costs):  # the cheapest first, which has the widest gap
            gap = pack_costs[high] - pack_costs[low]
            if gap <= even_gap or work_left <= 0:
                break
            given, taken = _partners(sizes, costs, members[high], members[low], free[high], free[low], gap)
            work_left -= len(members[high]) * (len(members[low]) + 1)
            if given < 0:
                continue
            down = members[high].pop(given)
            members[low].append(down)
            placed[down] = low
            moved_cost = costs[down]
            for cap in range(num_caps):
                free[high, cap] += sizes[down, cap]
                free[low, cap] -= sizes[down, cap]
            if taken >= 0:
                up = members[low].pop(taken)
                members[high].append(up)
                placed[up] = high
                moved_cost -= costs[up]
                for cap in range(num_caps):
                    free[high, cap] -= sizes[up, cap]
                    free[low, cap] += sizes[up, cap]
            pack_costs[high] -= moved_cost
            pack_costs[low] += moved_cost
            is_settled[high] = is_settled[low] = False
            has_changed = True
            break


@kernel_part
def _partners(sizes: Any, costs: Any, high_items: Any, low_items: Any, free_high: Any, free_low: Any, gap: Any) -> Any:
    """Returns which item the more expensive pack gives, and which one it takes: their indices in the packs.

    The second index is -1 if it takes none. The first is -1 if no exchange that fits narrows the `gap`, the difference
    of the packs' costs.
    """
    least_gap, given, taken = gap, -1, -1
    for i in range(len(high_items)):
        down = high_items[i]
        for j in range(-1, len(low_items)):
            up = low_items[j] if j >= 0 else -1
            moved_cost = costs[down] - (costs[up] if j >= 0 else 0)
            if moved_cost <= 0 or abs(gap - 2 * moved_cost) >= least_gap:
                continue
            fits = True
            for cap in range(sizes.shape[1]):
                moved_size = sizes[down, cap] - (sizes[up, cap] if j >= 0 else 0)
                fits &= -free_high[cap] <= moved_size and moved_size <= free_low[cap]
            if fits:
                least_gap, given, taken = abs(gap - 2 * moved_cost), i, j
    return given, taken


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, the kernels that a request would otherwise wait for."""
    one = np.ones(1, dtype=np.int64)
    even_packs(one[:, None], one, one, np.zeros(1, dtype=np.int64), 1)
