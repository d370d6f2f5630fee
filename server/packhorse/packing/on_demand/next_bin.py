"""The items of the bin that leaves next, chosen among those that online packing holds.

Owns the choice by tokens and under several budgets. Leaves filling a bin to the last token to `optimal/subset_sum`, and
which items are held and which item the bin has to have to `online`.

Shape letters: n items held, d budgets.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.packing.optimal.subset_sum import fullest_subset

MAX_TRIES = 64
"""Most lengths, from the longest on, for which a bin with an item of the length is tried. More gain little, and take
time if no bin can be full."""

MAX_WORK = 1 << 24
"""64-bit words of bitsets after which no further length is tried, so that a bin takes at most about 10 ms."""


def filled_bin(sizes: NDArray[np.int64], capacities: NDArray[np.int64], forced: int) -> list[int]:
    """Chooses the items of the next bin under several budgets: those that fit, by descending sum of their shares.

    Example:
        >>> filled_bin(np.array([[9, 0], [5, 2], [4, 3], [4, 1]]), np.array([10, 4]), forced=-1)
        [2, 3]

    Args:
        sizes: sizes of the items: int64 [n, d], each in [0, its capacity].
        capacities: a bin's capacities: int64 [d].
        forced: index of an item that the bin has to have; -1 for any bin.

    Returns:
        Indices into `sizes`, ascending.
    """
    order = np.argsort(-(sizes / capacities).sum(axis=1), kind="stable")
    first = int(order[0]) if forced < 0 else forced
    chosen, left = [first], capacities - sizes[first]
    order = order[order != first]
    while True:
        order = order[(sizes[order] <= left).all(axis=1)]
        if not len(order):
            return sorted(chosen)
        chosen.append(int(order[0]))
        left = left - sizes[order[0]]
        order = order[1:]


@kernel
def fullest_bin(sizes: NDArray[np.int64], capacity: int, limit: int, forced: int) -> NDArray[np.int64]:
    """Chooses the items of the next bin by tokens: the fullest of the bins that are tried.

    One is tried for each length, from the longest on: an item of this length, with those beside which it is fullest.

    Args:
        sizes: rooms of the items, in units: int64 [n], descending, each in [1, capacity].
        capacity: a bin's capacity in units.
        limit: the most items in a bin, at least 1.
        forced: index of an item that the bin has to have; -1 for any bin.

    Returns:
        Indices into `sizes`, int64, ascending.
    """
    first = max(forced, 0)
    best = np.empty(0, np.int64)
    best_total = 0
    tries = 0
    work = 0
    others = np.empty(max(len(sizes) - 1, 0), np.int64)
    while first < len(sizes) and tries < MAX_TRIES and work < MAX_WORK:
        for i in range(len(others)):
            others[i] = sizes[i + (i >= first)]  # all but `first`
        beside = fullest_subset(others, capacity - sizes[first], limit - 1)
        total = sizes[first]
        for i in beside:
            total += others[i]
        if total > best_total:
            best_total = total
            best = np.empty(len(beside) + 1, np.int64)
            at, has_first = 0, False
            # `beside` descends, and its indices do not count `first`. `best` ascends, and has `first` at its place.
            for k in range(len(beside) - 1, -1, -1):
                index = beside[k] + (beside[k] >= first)
                if index > first and not has_first:
                    best[at], at, has_first = first, at + 1, True
                best[at], at = index, at + 1
            if not has_first:
                best[at] = first
        if forced >= 0 or total == capacity:
            break
        length = sizes[first]
        while first < len(sizes) and sizes[first] == length:
            first += 1
        tries += 1
        work += len(others) * ((capacity - length >> 6) + 1)  # words of the bitset in `fullest_subset`
    return best


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, the kernels that the first bin would otherwise wait for."""
    fullest_bin(np.ones(1, np.int64), 1, 1, -1)
