"""Which bin of a window goes to which rank at which step, so that ranks wait for each other as little as can be.

Owns the two arrangements of `Balance`, as functions of costs and a key. Leaves windows, and what the numbers stand for,
to `assignment`.

Legend: n windows, W = A·D·b bins in each, A steps, D ranks, b bins in a rank's batch.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packhorse.topology import Balance

_INDEX_BITS = 20
"""A window has at most 2^20 bins."""

MAX_BINS_PER_WINDOW = 1 << _INDEX_BITS
"""More bins than this cannot change places with each other."""

_SWAPS_PER_RANK = 16
"""Exchanges that even out a step; each about halves a difference."""

_CLOSE_BITS = 12
"""Shares that differ by less than one part in 2^12 are equal enough: the exchanges end."""

_MOST_INSERTED = 64
"""Up to so many shares are sorted by insertion."""


def arrange(
    costs: NDArray[np.int64], balance: Balance, num_steps: int, world_size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Returns which bin of its window each rank takes at each step.

    MICRO_STEP sorts a window by cost and cuts it into steps, whose bins are dealt to ranks so that sums agree; the
    steps then come in a keyed order. OPTIMIZER_STEP deals the whole window to ranks. In both a key decides which rank
    gets which share, so that no rank is always the slow one. Bins of equal cost are taken in the order of positions,
    which is random already.

    Example:
        >>> costs, keys = np.array([[9, 1, 8, 2]]), np.zeros(1, np.uint64)
        >>> taken = arrange(costs, Balance.MICRO_STEP, num_steps=2, world_size=2, keys=keys)
        >>> sorted(sorted(costs[0, step].ravel().tolist()) for step in taken[0])
        [[1, 2], [8, 9]]

    Args:
        costs: int64 [n, W], at least 0.
        balance: MICRO_STEP or OPTIMIZER_STEP.
        num_steps: A.
        world_size: D.
        keys: uint64 [n], one a window.

    Returns:
        int64 [n, A, D, b]: indices into the window, each once.
    """
    num_windows, num_bins = costs.shape
    is_micro = balance is Balance.MICRO_STEP
    num_cuts = num_steps if is_micro else 1
    each_cut = np.arange(1, num_cuts + 1, dtype=np.uint64)
    ranks = _keyed_orders(_hash(keys[:, None] + each_cut).ravel(), world_size)
    arranged = np.empty((num_windows, num_steps, world_size, num_bins // (num_steps * world_size)), dtype=np.int64)
    _fill(
        costs,
        _sorted(costs),
        is_micro,
        _keyed_orders(keys, num_cuts),
        ranks.reshape(num_windows, num_cuts, world_size),
        arranged,
    )
    return arranged


def _sorted(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns each row in ascending order, as numbers that hold W - 1 - index in their last bits: int64 [n, W].

    Cost and index are sorted as one number, which NumPy does several times faster than `argsort`. Costs beyond 43 bits
    lose their last ones, which changes nothing that can be measured.
    """
    shift = max(0, int(costs.max(initial=0)).bit_length() - (63 - _INDEX_BITS))
    packed = ((costs >> shift) << _INDEX_BITS) | np.arange(costs.shape[1] - 1, -1, -1)
    packed.sort(axis=1)
    return packed


@njit(nogil=True, cache=True)
def _fill(costs: Any, packed: Any, is_micro: bool, cut_orders: Any, rank_orders: Any, arranged: Any) -> None:
    """Cuts every window's descending bins, deals each cut to the ranks, and writes where they go.

    Args:
        costs: int64 [n, W].
        packed: int64 [n, W], see `_sorted`.
        is_micro: whether a cut is a step, or the whole window.
        cut_orders: int64 [n, cuts], which cut comes as which step.
        rank_orders: int64 [n, cuts, D], which share goes to which rank.
        arranged: int64 [n, A, D, b], written.
    """
    num_windows, num_bins = costs.shape
    num_ranks, batch = arranged.shape[2], arranged.shape[3]
    num_cuts = cut_orders.shape[1]
    size = num_bins // num_cuts
    bins = np.empty(size, np.int64)
    of_bins = np.empty(size, np.int64)
    dealt = np.empty((num_ranks, size // num_ranks), np.int64)
    for window in range(num_windows):
        for step in range(num_cuts):
            end = num_bins - cut_orders[window, step] * size
            for i in range(size):
                bins[i] = num_bins - 1 - (packed[window, end - 1 - i] & (MAX_BINS_PER_WINDOW - 1))
                of_bins[i] = costs[window, bins[i]]
            _deal(of_bins, dealt)
            for rank in range(num_ranks):
                share = bins[dealt[rank_orders[window, step, rank]]]
                if is_micro:
                    arranged[window, step, rank] = share
                else:  # which of its bins a rank takes first is as random as positions are
                    share.sort()
                    for i in range(len(share)):
                        arranged[window, i // batch, rank, i % batch] = share[i]


@njit(nogil=True, cache=True)
def _deal(costs: Any, dealt: Any) -> None:
    """Deals bins, by descending cost, into shares of as many bins and about equal cost: int64 [D, V / D].

    Longest processing time first, one bin to every share in turn; then exchanges between the ends.
    """
    num_shares, per_share = dealt.shape
    sums = np.zeros(num_shares, np.int64)
    waiting = np.arange(num_shares)  # shares, the emptiest first
    for turn in range(per_share):
        if turn and num_shares > _MOST_INSERTED:
            waiting[:] = np.argsort(sums, kind="mergesort")
        elif turn:
            _insert(sums, waiting)
        for i in range(num_shares):  # the emptiest share takes the most expensive bin
            bin_ = turn * num_shares + i
            dealt[waiting[i], turn] = bin_
            sums[waiting[i]] += costs[bin_]
    if per_share > 1:
        _exchange(costs, dealt, sums)


@njit(nogil=True, cache=True)
def _insert(sums: Any, waiting: Any) -> None:
    """Sorts few shares by their sums, in place; the last come first mostly, so it begins by turning them round."""
    waiting[:] = waiting[::-1].copy()
    for i in range(1, len(waiting)):
        share, j = waiting[i], i
        while j and (sums[waiting[j - 1]], waiting[j - 1]) > (sums[share], share):
            waiting[j] = waiting[j - 1]
            j -= 1
        waiting[j] = share


@njit(nogil=True, cache=True)
def _exchange(costs: Any, dealt: Any, sums: Any) -> None:
    """Again and again exchanges one bin between the fullest and the emptiest share, the pair that evens them best."""
    num_shares, per_share = dealt.shape
    for _ in range(_SWAPS_PER_RANK * num_shares):
        high, low = sums.argmax(), sums.argmin()
        difference = sums[high] - sums[low]
        if difference <= sums[low] >> _CLOSE_BITS:
            return
        best, best_i, best_j = difference, -1, -1
        j = 0
        for i in range(per_share):  # both descend, so the partner moves one way
            while j < per_share and costs[dealt[high, i]] - costs[dealt[low, j]] < difference // 2:
                j += 1
            for k in (j - 1, j):
                if 0 <= k < per_share:
                    left = abs(difference - 2 * (costs[dealt[high, i]] - costs[dealt[low, k]]))
                    if left < best:
                        best, best_i, best_j = left, i, k
        if best_i < 0:
            return
        moved = costs[dealt[high, best_i]] - costs[dealt[low, best_j]]
        dealt[high, best_i], dealt[low, best_j] = dealt[low, best_j], dealt[high, best_i]
        sums[high] -= moved
        sums[low] += moved
        _sink(costs, dealt[high], best_i)
        _sink(costs, dealt[low], best_j)


@njit(nogil=True, cache=True)
def _sink(costs: Any, share: Any, at: int) -> None:
    """Restores the descending order of a share in which one entry changed."""
    while at + 1 < len(share) and costs[share[at]] < costs[share[at + 1]]:
        share[at], share[at + 1] = share[at + 1], share[at]
        at += 1
    while at > 0 and costs[share[at]] > costs[share[at - 1]]:
        share[at], share[at - 1] = share[at - 1], share[at]
        at -= 1


def _keyed_orders(keys: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Returns one permutation of [0, size) for every key: int64 [len(keys), size]."""
    if size == 1:
        return np.zeros((len(keys), 1), dtype=np.int64)
    hashes = _hash(keys[:, None] ^ _hash(np.arange(size, dtype=np.uint64))[None, :])
    packed = (hashes >> np.uint64(_INDEX_BITS + 1)).astype(np.int64) << _INDEX_BITS | np.arange(size)
    packed.sort(axis=1)
    return packed & (MAX_BINS_PER_WINDOW - 1)


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
