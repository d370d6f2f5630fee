"""Which bin of a window goes to which rank at which step, so that ranks wait for each other as little as can be.

Owns the two arrangements of `Balance`, as functions of costs and a key. Leaves windows, and what the numbers stand for,
to `assignment`.

Legend: n windows, W = A·D·b bins in each, A steps, D ranks, b bins in a rank's batch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.epoch.kernels.permutation import GOLDEN, mix
from packhorse.topology import Balance

_INDEX_BITS = 20
"""A window has at most 2^20 bins."""

MAX_BINS_PER_OPTIMIZER_STEP = 1 << _INDEX_BITS
"""More bins than this cannot be exchanged with each other."""

_SWAPS_PER_RANK = 16
"""Exchanges that even out a step; each about halves a difference."""

_CLOSE_BITS = 12
"""Shares that differ by less than one part in 2^12 are equal enough: the exchanges end."""

_SORTED_TURNS = 2
"""Last turns of a deal, in which the shares are sorted; before, their order is turned round at each turn."""

_MOST_INSERTED = 64
"""Up to so many shares are sorted by insertion."""

_HALF = np.uint64(32)


def arrange(
    costs: NDArray[np.int64], balance: Balance, num_steps: int, world_size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Returns which bin of its optimizer step each rank takes at each step.

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
        keys: uint64 [n], one an optimizer step.

    Returns:
        int64 [n, A, D, b]: indices into the optimizer step, each once. What a rank takes lies together in memory.
    """
    num_windows, num_bins = costs.shape
    arranged = np.empty((world_size, num_windows, num_steps, num_bins // (num_steps * world_size)), dtype=np.int64)
    _fill(costs, _sorted(costs), balance is Balance.MICRO_STEP, keys, arranged)
    return arranged.transpose(1, 2, 0, 3)


def _sorted(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns each row in ascending order, as numbers that hold W - 1 - index in their last bits: int64 [n, W].

    Cost and index are sorted as one number, which NumPy does several times faster than `argsort`. Costs beyond 43 bits
    lose their last ones, which changes nothing that can be measured.
    """
    shift = max(0, int(costs.max(initial=0)).bit_length() - (63 - _INDEX_BITS))
    packed = ((costs >> shift) << _INDEX_BITS) | np.arange(costs.shape[1] - 1, -1, -1)
    packed.sort(axis=1)
    return packed


@kernel
def _fill(costs: Any, packed: Any, is_micro: bool, keys: Any, arranged: Any) -> None:
    """Cuts every window's descending bins, deals each cut to the ranks, and writes where they go.

    Args:
        costs: int64 [n, W].
        packed: int64 [n, W], see `_sorted`.
        is_micro: whether a cut is a step, or the whole window.
        keys: uint64 [n]; decide which cut comes as which step, and which share goes to which rank.
        arranged: int64 [D, n, A, b], written.
    """
    num_ranks, num_windows, num_steps, batch = arranged.shape
    num_bins = costs.shape[1]
    num_cuts = num_steps if is_micro else 1
    size = num_bins // num_cuts
    bins, of_bins, rank_of = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(num_bins, np.int64)
    dealt = np.empty((num_ranks, size // num_ranks), np.int64)
    cuts, ranks, taken = np.empty(num_cuts, np.int64), np.empty(num_ranks, np.int64), np.empty(num_ranks, np.int64)
    for window in range(num_windows):
        state = _shuffle(mix(keys[window]), cuts)
        for step in range(num_cuts):
            end = num_bins - cuts[step] * size
            for i in range(size):
                bins[i] = num_bins - 1 - (packed[window, end - 1 - i] & (MAX_BINS_PER_OPTIMIZER_STEP - 1))
            state = _shuffle(state, ranks)
            if is_micro and size == num_ranks:  # one bin a rank: there is nothing to even out
                for i in range(size):
                    arranged[ranks[i], window, step, 0] = bins[i]
                continue
            for i in range(size):
                of_bins[i] = costs[window, bins[i]]
            _deal(of_bins, dealt)
            if is_micro:
                for share in range(num_ranks):
                    for i in range(batch):
                        arranged[ranks[share], window, step, i] = bins[dealt[share, i]]
        if not is_micro:  # which of its bins a rank takes first is as random as positions are
            for share in range(num_ranks):
                taken[share] = 0
                for i in range(size // num_ranks):
                    rank_of[bins[dealt[share, i]]] = ranks[share]
            for i in range(num_bins):
                rank = rank_of[i]
                arranged[rank, window, taken[rank] // batch, taken[rank] % batch] = i
                taken[rank] += 1


@kernel
def _deal(costs: Any, dealt: Any) -> None:
    """Deals bins, by descending cost, into shares of as many bins and about equal cost.

    One bin to every share in turn, the next turn the other way round, the last ones longest processing time first; then
    exchanges between the ends.

    Args:
        costs: int64 [V], descending.
        dealt: int64 [D, V / D], written.
    """
    num_shares, per_share = dealt.shape
    waiting = np.arange(num_shares)  # shares, the emptiest first
    waited = np.zeros(num_shares, np.int64)  # their sums
    for turn in range(per_share):
        if turn and turn + _SORTED_TURNS < per_share:
            _reverse(waited, waiting)
        elif turn and num_shares > _MOST_INSERTED:
            order = np.argsort(waited, kind="mergesort")
            waiting, waited = waiting[order], waited[order]
        elif turn:
            _insert(waited, waiting)
        for i in range(num_shares):  # the emptiest share takes the most expensive bin
            dealt[waiting[i], turn] = turn * num_shares + i
            waited[i] += costs[turn * num_shares + i]
    if per_share > 1:
        sums = np.empty(num_shares, np.int64)
        for i in range(num_shares):
            sums[waiting[i]] = waited[i]
        _exchange(costs, dealt, sums)


@kernel
def _reverse(sums: Any, shares: Any) -> None:
    """Turns the order of shares round, in place."""
    num = len(shares)
    for i in range(num // 2):
        sums[i], sums[num - 1 - i] = sums[num - 1 - i], sums[i]
        shares[i], shares[num - 1 - i] = shares[num - 1 - i], shares[i]


@kernel
def _insert(sums: Any, shares: Any) -> None:
    """Sorts few shares by their sums, in place; the last come first mostly, so it begins by turning them round."""
    _reverse(sums, shares)
    for i in range(1, len(shares)):
        own, share, j = sums[i], shares[i], i
        while j and sums[j - 1] > own:
            sums[j], shares[j] = sums[j - 1], shares[j - 1]
            j -= 1
        sums[j], shares[j] = own, share


@kernel
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


@kernel
def _sink(costs: Any, share: Any, at: int) -> None:
    """Restores the descending order of a share in which one entry changed."""
    while at + 1 < len(share) and costs[share[at]] < costs[share[at + 1]]:
        share[at], share[at + 1] = share[at + 1], share[at]
        at += 1
    while at > 0 and costs[share[at]] > costs[share[at - 1]]:
        share[at], share[at - 1] = share[at - 1], share[at]
        at -= 1


@kernel
def _shuffle(state: Any, out: Any) -> Any:
    """Writes a permutation of [0, len(out)) that the state decides (Fisher-Yates), and returns the next state."""
    for i in range(len(out)):
        state += GOLDEN
        j = np.int64(((mix(state) >> _HALF) * np.uint64(i + 1)) >> _HALF)
        out[i] = out[j]
        out[j] = i
    return state
