"""Which rank takes which bin of an optimizer step at which step, so that ranks wait little for each other.

Owns the two arrangements of `topology.Balance`, as functions of costs and a key. Leaves how long ranks wait under each
to `waiting`, a bin's cost to `plan_index`, and which optimizer steps an epoch has to `assignment`.

Shape letters: n optimizer steps, W = A·D·b bins in each, A steps, D ranks, b bins in a rank's batch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_or, kernel_part
from packhorse.epoch.permutation import GOLDEN, mix
from packhorse.topology import Balance

_INDEX_BITS = 20
MAX_BINS_PER_OPTIMIZER_STEP = 1 << _INDEX_BITS
"""The most bins of an optimizer step that can be balanced."""

_SWAPS_PER_RANK = 16
"""Most exchanges of two bins, for each rank. An exchange about halves a difference."""
_CLOSE_BITS = 12
"""Exchanges end when the costs of shares differ by at most 1 / 2^12."""
_SORTED_ROUNDS = 2
"""Number of last rounds of a deal before which shares are sorted. Before the others they are reversed."""
_MOST_INSERTED = 64
"""Most shares that are sorted by insertion; more are sorted by merging."""
_HALF_BITS = np.uint64(32)
"""A random number of 32 bits, times n, shifted by as many, is a random number below n."""


def arrange(
    costs: NDArray[np.int64], balance: Balance, num_steps: int, world_size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Returns the bin that each rank takes at each step, for several optimizer steps.

    MICRO_STEP sorts the bins of an optimizer step by cost, and cuts them into steps. It deals the bins of each step to
    ranks so that their sums of costs are about equal. The steps then come in an order that the key decides.
    OPTIMIZER_STEP deals all bins of the optimizer step to ranks at once. In both the key decides which rank gets which
    share, so that no rank is always the slow one. Bins of equal cost are taken in the order of positions, which is
    random already.

    Example:
        >>> costs, keys = np.array([[9, 1, 8, 2]]), np.zeros(1, np.uint64)
        >>> taken = arrange(costs, Balance.MICRO_STEP, num_steps=2, world_size=2, keys=keys)
        >>> sorted(sorted(costs[0, step].ravel().tolist()) for step in taken[0])
        [[1, 2], [8, 9]]

    Args:
        costs: costs of the bins: int64 [n, W], at least 0.
        balance: MICRO_STEP or OPTIMIZER_STEP.
        num_steps: A, the number of steps of an optimizer step.
        world_size: D, the number of ranks.
        keys: a key for each optimizer step: uint64 [n].

    Returns:
        Indices of bins in their optimizer step, each once: int64 [n, A, D, b]. A rank's bins lie together in memory.
    """
    num_optimizer_steps, num_bins = costs.shape
    arranged = np.empty(
        (world_size, num_optimizer_steps, num_steps, num_bins // (num_steps * world_size)), dtype=np.int64
    )
    _fill(costs, _sorted(costs), balance is Balance.MICRO_STEP, keys, arranged)
    return arranged.transpose(1, 2, 0, 3)


def _sorted(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the bins of each row by ascending cost, each as one number: int64 [n, W].

    The number is (cost << 20) | (W - 1 - index). NumPy sorts such numbers several times faster than `argsort` sorts.
    Costs of more than 43 bits lose their last bits, which changes nothing measurable.
    """
    shift = max(0, int(costs.max(initial=0)).bit_length() - (63 - _INDEX_BITS))
    packed = ((costs >> shift) << _INDEX_BITS) | np.arange(costs.shape[1] - 1, -1, -1)
    packed.sort(axis=1)
    return packed


@kernel_or()
def _fill(costs: Any, packed: Any, is_micro: bool, keys: Any, arranged: Any) -> None:
    """Does the work of `arrange`: cuts the bins of an optimizer step by descending cost, and deals each cut to ranks.

    A cut has the bins of a step if `is_micro`, else all of the optimizer step. Keys decide which cut comes at which
    step, and which rank gets which share.

    Args:
        costs: as for `arrange`.
        packed: a result of `_sorted`.
        is_micro: whether the balance is MICRO_STEP.
        keys: as for `arrange`.
        arranged: receives indices of bins in their optimizer step: int64 [D, n, A, b].
    """
    num_ranks, num_optimizer_steps, num_steps, batch = arranged.shape
    num_bins = costs.shape[1]
    num_cuts = num_steps if is_micro else 1
    cut_size = num_bins // num_cuts
    cut_bins, cut_costs = np.empty(cut_size, np.int64), np.empty(cut_size, np.int64)  # of a cut, by descending cost
    rank_of = np.empty(num_bins, np.int64)
    dealt = np.empty((num_ranks, cut_size // num_ranks), np.int64)  # for each share, its bins as indices of the cut
    cuts, ranks, num_taken = np.empty(num_cuts, np.int64), np.empty(num_ranks, np.int64), np.empty(num_ranks, np.int64)
    for number in range(num_optimizer_steps):
        state = _shuffle(mix(keys[number]), cuts)
        for step in range(num_cuts):
            end = num_bins - cuts[step] * cut_size  # of the cut in `packed`, which ascends
            for i in range(cut_size):
                cut_bins[i] = num_bins - 1 - (packed[number, end - 1 - i] & (MAX_BINS_PER_OPTIMIZER_STEP - 1))
            state = _shuffle(state, ranks)
            if is_micro and cut_size == num_ranks:  # one bin for each rank: there is nothing to even out
                for i in range(cut_size):
                    arranged[ranks[i], number, step, 0] = cut_bins[i]
                continue
            for i in range(cut_size):
                cut_costs[i] = costs[number, cut_bins[i]]
            _deal(cut_costs, dealt)
            if is_micro:
                for share in range(num_ranks):
                    for i in range(batch):
                        arranged[ranks[share], number, step, i] = cut_bins[dealt[share, i]]
        if not is_micro:  # each rank takes its bins in the order of their positions, which is random
            for share in range(num_ranks):
                num_taken[share] = 0
                for i in range(cut_size // num_ranks):
                    rank_of[cut_bins[dealt[share, i]]] = ranks[share]
            for i in range(num_bins):
                rank = rank_of[i]
                arranged[rank, number, num_taken[rank] // batch, num_taken[rank] % batch] = i
                num_taken[rank] += 1


@kernel_part
def _deal(costs: Any, dealt: Any) -> None:
    """Deals bins into shares of equally many bins and about equal cost.

    Each round gives every share one bin, in the opposite order of the round before. In the last rounds shares are
    sorted first, so that the emptiest gets the most expensive bin. In the end the fullest and the emptiest share
    exchange bins, again and again.

    Args:
        costs: costs of V bins, descending: int64 [V].
        dealt: receives the indices of each share's bins: int64 [D, V / D].
    """
    num_shares, per_share = dealt.shape
    shares = np.arange(num_shares)  # in the order in which they get bins
    ordered_sums = np.zeros(num_shares, np.int64)  # costs of the shares in this order
    for number in range(per_share):
        if number and number + _SORTED_ROUNDS < per_share:
            _reverse(ordered_sums, shares)
        elif number and num_shares > _MOST_INSERTED:
            _merge(ordered_sums, shares)
        elif number:
            _insert(ordered_sums, shares)
        for i in range(num_shares):
            dealt[shares[i], number] = number * num_shares + i
            ordered_sums[i] += costs[number * num_shares + i]
    if per_share > 1:
        sums = np.empty(num_shares, np.int64)
        for i in range(num_shares):
            sums[shares[i]] = ordered_sums[i]
        _exchange(costs, dealt, sums)


@kernel_part
def _reverse(sums: Any, shares: Any) -> None:
    num_shares = len(shares)
    for i in range(num_shares // 2):
        sums[i], sums[num_shares - 1 - i] = sums[num_shares - 1 - i], sums[i]
        shares[i], shares[num_shares - 1 - i] = shares[num_shares - 1 - i], shares[i]


@kernel_part
def _insert(sums: Any, shares: Any) -> None:
    """Sorts few shares by ascending sum, in place. They are mostly descending, so it reverses them first."""
    _reverse(sums, shares)
    for i in range(1, len(shares)):
        own_sum, share, j = sums[i], shares[i], i
        while j and sums[j - 1] > own_sum:
            sums[j], shares[j] = sums[j - 1], shares[j - 1]
            j -= 1
        sums[j], shares[j] = own_sum, share


@kernel_part
def _merge(sums: Any, shares: Any) -> None:
    """Sorts many shares by ascending sum, in place and stably. np.argsort would take 3 s to compile."""
    num_shares, width = len(shares), 1
    other_sums, other_shares = np.empty(num_shares, np.int64), np.empty(num_shares, np.int64)
    while width < num_shares:
        for begin in range(0, num_shares, 2 * width):
            middle, end = min(begin + width, num_shares), min(begin + 2 * width, num_shares)
            left, right = begin, middle
            for at in range(begin, end):
                if left < middle and (right == end or sums[left] <= sums[right]):
                    other_sums[at], other_shares[at] = sums[left], shares[left]
                    left += 1
                else:
                    other_sums[at], other_shares[at] = sums[right], shares[right]
                    right += 1
        for at in range(num_shares):
            sums[at], shares[at] = other_sums[at], other_shares[at]
        width *= 2


@kernel_part
def _exchange(costs: Any, dealt: Any, sums: Any) -> None:
    """Exchanges bins between the fullest and the emptiest share, each time the pair that evens them out best."""
    num_shares, per_share = dealt.shape
    for _ in range(_SWAPS_PER_RANK * num_shares):
        high = low = 0
        for share in range(num_shares):
            if sums[share] > sums[high]:
                high = share
            if sums[share] < sums[low]:
                low = share
        difference = sums[high] - sums[low]
        if difference <= sums[low] >> _CLOSE_BITS:
            return
        least, best_i, best_j = difference, -1, -1  # the least difference that an exchange leaves, and this exchange
        j = 0
        for i in range(per_share):  # costs descend in both shares, so the best partner j only moves on
            while j < per_share and costs[dealt[high, i]] - costs[dealt[low, j]] < difference // 2:
                j += 1
            for k in (j - 1, j):
                if 0 <= k < per_share:
                    difference_left = abs(difference - 2 * (costs[dealt[high, i]] - costs[dealt[low, k]]))
                    if difference_left < least:
                        least, best_i, best_j = difference_left, i, k
        if best_i < 0:
            return
        moved = costs[dealt[high, best_i]] - costs[dealt[low, best_j]]
        dealt[high, best_i], dealt[low, best_j] = dealt[low, best_j], dealt[high, best_i]
        sums[high] -= moved
        sums[low] += moved
        _sink(costs, dealt[high], best_i)
        _sink(costs, dealt[low], best_j)


@kernel_part
def _sink(costs: Any, share: Any, at: int) -> None:
    """Restores the descending order of a share in which one entry changed."""
    while at + 1 < len(share) and costs[share[at]] < costs[share[at + 1]]:
        share[at], share[at + 1] = share[at + 1], share[at]
        at += 1
    while at > 0 and costs[share[at]] > costs[share[at - 1]]:
        share[at], share[at - 1] = share[at - 1], share[at]
        at -= 1


@kernel_part
def _shuffle(state: Any, out: Any) -> Any:
    """Writes a random permutation of [0, len(out)) by Fisher-Yates; takes the generator's state, returns the next."""
    for i in range(len(out)):
        state += GOLDEN
        j = np.int64(((mix(state) >> _HALF_BITS) * np.uint64(i + 1)) >> _HALF_BITS)
        out[i] = out[j]
        out[j] = i
    return state
