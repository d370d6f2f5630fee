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
"""Exchanges that even out an optimizer step; each about halves a difference."""


def arrange(
    costs: NDArray[np.int64], balance: Balance, num_steps: int, world_size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Returns which bin of its window each rank takes at each step.

    MICRO_STEP sorts a window by cost and cuts it into steps, whose bins are dealt to ranks so that sums agree; the
    steps then come in a keyed order. OPTIMIZER_STEP deals the whole window to ranks. In both a key decides which rank
    gets which share, so that no rank is always the slow one. Bins of equal cost are taken in the order of positions,
    which is random already.

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
    batch = num_bins // (num_steps * world_size)
    order = _descending(costs)  # [n, W]
    if balance is Balance.MICRO_STEP:
        steps = order.reshape(num_windows * num_steps, world_size * batch)
        if batch == 1:
            shares = steps.reshape(-1, world_size, 1)
        else:
            shares = _shares(np.take_along_axis(costs, order, axis=1).reshape(steps.shape), steps, world_size)
        in_order = shares.reshape(num_windows, num_steps, world_size, batch)
        of_steps = in_order[np.arange(num_windows)[:, None], _keyed_orders(keys, num_steps)]
    else:
        dealt = _shares(np.take_along_axis(costs, order, axis=1), order, world_size)  # [n, D, A·b]
        dealt = np.sort(dealt, axis=2)  # which of its bins a rank takes first is as random as positions are
        of_steps = dealt.reshape(num_windows, world_size, num_steps, batch).swapaxes(1, 2)
    per_step = num_steps if balance is Balance.MICRO_STEP else 1
    each_step = np.arange(1, per_step + 1, dtype=np.uint64)
    ranks = _keyed_orders(_hash(keys[:, None] + each_step).ravel(), world_size)
    ranks = np.broadcast_to(ranks.reshape(num_windows, per_step, world_size), (num_windows, num_steps, world_size))
    return np.take_along_axis(of_steps, ranks[..., None], axis=2)


def _descending(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns each row's indices by descending cost: int64 [n, W].

    Cost and index are sorted as one number, which NumPy does several times faster than `argsort`. Costs beyond 43 bits
    lose their last ones, which changes nothing that can be measured.
    """
    shift = max(0, int(costs.max(initial=0)).bit_length() - (63 - _INDEX_BITS))
    packed = ((costs >> shift) << _INDEX_BITS) | np.arange(costs.shape[1] - 1, -1, -1)
    packed.sort(axis=1)
    return costs.shape[1] - 1 - (packed[:, ::-1] & (MAX_BINS_PER_WINDOW - 1))


def _shares(costs: NDArray[np.int64], order: NDArray[np.int64], num_shares: int) -> NDArray[np.int64]:
    """Deals rows of bins, by descending cost, into shares of as many bins and about equal cost.

    Args:
        costs: int64 [m, V], each row descending.
        order: int64 [m, V], what each stands for.
        num_shares: D, a divisor of V.

    Returns:
        int64 [m, D, V / D]: entries of `order`.
    """
    dealt = np.empty((len(costs), num_shares, costs.shape[1] // num_shares), dtype=np.int64)
    _deal_rows(costs, dealt)
    flat = dealt.reshape(len(costs), -1)
    return np.take_along_axis(order, flat, axis=1).reshape(dealt.shape)


@njit(nogil=True, cache=True)
def _deal_rows(costs: Any, dealt: Any) -> None:
    """Longest processing time first, one bin to every share in turn; then exchanges between the ends."""
    num_shares, per_share = dealt.shape[1], dealt.shape[2]
    sums = np.empty(num_shares, np.int64)
    for row in range(len(costs)):
        sums[:] = 0
        for turn in range(per_share):
            waiting = np.argsort(sums, kind="mergesort")  # the emptiest share takes the most expensive bin
            for i in range(num_shares):
                bin_ = turn * num_shares + i
                dealt[row, waiting[i], turn] = bin_
                sums[waiting[i]] += costs[row, bin_]
        if per_share > 1:
            _exchange(costs[row], dealt[row], sums)


@njit(nogil=True, cache=True)
def _exchange(costs: Any, dealt: Any, sums: Any) -> None:
    """Again and again exchanges one bin between the fullest and the emptiest share, the pair that evens them best."""
    num_shares, per_share = dealt.shape
    for _ in range(_SWAPS_PER_RANK * num_shares):
        high, low = sums.argmax(), sums.argmin()
        difference = sums[high] - sums[low]
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
