"""Which rank takes which bin that was packed without a dataset: bin k belongs to rank k mod D.

Owns the fields of PackSequences and PackStream that say how many ranks there are and when they wait for each other, and
the choice of bins that make ranks wait least. Leaves making bins of equal cost to `packhorse.packing`, and arranging
bins by cost to `packhorse.epoch`.

Legend: S sequences, N bins, D ranks.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch import arrange
from packhorse.packing import even_bins, split_to_multiple
from packhorse.server.base.faults import invalid_field
from packhorse.server.methods import requests
from packhorse.topology import Balance, Topology
from packhorse.v1 import packing_pb2 as pb

MAX_MULTIPLE = 1 << 16
"""Largest `num_bins_multiple_of`, because almost as many bins may have to be split off one by one. Also the most bins
in a round."""

TRY_MORE_RATIO = 1.05
"""Cost of the slowest rank, as a multiple of the mean, above which one more round of bins is tried."""

MOST_COST = 1 << 62
"""Limit, exclusive, of what all sequences cost that are balanced together: costs are added up in 64 bits."""


def ranks_of(message: pb.PackSequencesRequest | pb.PackStreamOptions, *, within: str = "") -> Topology:
    """Returns the ranks that a message packs for; raises a ServiceError if a field is out of range.

    `within` is written before a field's name in the error, such as "options.".
    """
    world_size = requests.integer(f"{within}num_bins_multiple_of", message.num_bins_multiple_of, 0, MAX_MULTIPLE) or 1
    accumulation = 1
    if isinstance(message, pb.PackStreamOptions):
        most = MAX_MULTIPLE // world_size
        accumulation = requests.integer(f"{within}accumulation", message.accumulation, 0, most) or 1
    balance = Balance.NONE  # what older clients, which do not know the field, expect
    if message.balance:
        balance = requests.choice(f"{within}balance", message.balance, pb.Balance.Name, Balance)
    cost_linear = requests.integer(f"{within}cost_linear", message.cost_linear, 0)
    return Topology(world_size=world_size, accumulation=accumulation, balance=balance, cost_linear=cost_linear)


def check_costs(ranks: Topology, num_tokens: int, longest_tokens: int, *, within: str = "") -> None:
    """Raises a ServiceError if the sum of costs may not fit into 64 bits; `within` is as in `ranks_of`.

    `num_tokens` is of all sequences that are balanced together, `longest_tokens` of the longest one.
    """
    if ranks.balance is not Balance.NONE and num_tokens * (ranks.cost_linear + longest_tokens) >= MOST_COST:
        raise invalid_field(
            f"{within}cost_linear",
            f"{within}cost_linear {ranks.cost_linear} gives {num_tokens} tokens, in sequences of up to "
            f"{longest_tokens}, a cost of more than 62 bits; give a smaller one, or no balance",
        )


def is_balanced(ranks: Topology) -> bool:
    """Whether bins are arranged so that ranks wait less for each other."""
    return ranks.balance is not Balance.NONE and ranks.world_size > 1


def evened(
    indices: NDArray[np.int64],
    bin_ends: NDArray[np.int64],
    sizes: NDArray[np.int64],
    costs: NDArray[np.int64],
    capacities: NDArray[np.int64],
    ranks: Topology,
    kinds: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the bins for which ranks wait least, of three: the given ones, those of `even_bins`, and one more round.

    The given ones may win if single items cost more than a mean bin, because bins of several sizes share rounds better.
    One more round, D more bins, is tried only if the slowest rank's cost is over TRY_MORE_RATIO times the mean: bins
    that are full to the last token can exchange nothing.

    Args:
        indices: items of all bins, end to end, as indices into `sizes`: int64 [M].
        bin_ends: exclusive end of every bin in `indices`: int64 [N]; N is a multiple of D.
        sizes: what each item takes of every capacity, tokens first: int64 [M, d].
        costs: of each item: int64 [M].
        capacities: of a bin: int64 [d].
        ranks: how many there are, and their balance.
        kinds: of each item; items of different kinds share no bin: int64 [M]. None if all may.

    Returns:
        `indices` and `bin_ends` of the chosen bins.
    """

    def duration(bins: tuple[NDArray[np.int64], NDArray[np.int64]]) -> int:
        items, ends = bins
        return _duration_of_costs(costs[items], ends, ranks)

    best = min(even_bins(indices, bin_ends, sizes, costs, capacities, kinds), (indices, bin_ends), key=duration)
    num_bins = len(bin_ends) + ranks.world_size
    if duration(best) * ranks.world_size <= TRY_MORE_RATIO * costs.sum() or num_bins > len(indices):
        return best
    # The next multiple of `num_bins` is `num_bins` itself: bins are split until there are so many.
    one_more_round = split_to_multiple(indices, bin_ends, sizes[:, 0], num_bins)
    return min(best, even_bins(*one_more_round, sizes, costs, capacities, kinds), key=duration)


def _duration_of_costs(costs: NDArray[np.int64], bin_ends: NDArray[np.int64], ranks: Topology) -> int:
    """Returns how long ranks take, in costs. `costs` are of items, bin after bin.

    If ranks wait for each other at every micro step, that is the sum of each round's largest cost; otherwise it is the
    largest sum of one rank's costs.
    """
    order = order_of_costs(costs, bin_ends, ranks)
    in_order = sums_of(costs, bin_ends)[order].reshape(-1, ranks.world_size)
    return int(in_order.max(axis=1).sum() if ranks.balance is Balance.MICRO_STEP else in_order.sum(axis=0).max())


def sums_of(costs: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sum of each bin's or item's costs: int64 [n].

    Example:
        >>> sums_of(np.array([1, 2, 3]), np.array([2, 2, 3])).tolist()
        [3, 0, 3]

    Args:
        costs: those of the first bin or item, then those of the second, and so on.
        ends: exclusive end of each bin or item in `costs`: int64 [n].
    """
    return np.diff(np.concatenate(([0], np.cumsum(costs)))[ends], prepend=0)


def order_of_costs(costs: NDArray[np.int64], bin_ends: NDArray[np.int64], ranks: Topology) -> NDArray[np.int64]:
    """Returns the order in which bins leave: bin k of this order goes to rank k mod D.

    The sum of all costs is the key of the shuffle, so that no rank always gets the most expensive bins.

    Example:
        >>> ranks = Topology(world_size=2, balance=Balance.OPTIMIZER_STEP)
        >>> order = order_of_costs(np.array([25, 16, 16, 9]), np.array([1, 2, 3, 4]), ranks)
        >>> sorted(sorted(order[rank::2].tolist()) for rank in range(2))  # 25 + 9 beside 16 + 16
        [[0, 3], [1, 2]]

    Args:
        costs: of sequences or items, bin after bin: int64 [S].
        bin_ends: int64 [N], exclusive end of every bin in `costs`; N is a multiple of D.
        ranks: how many there are, and their balance.

    Returns:
        int64 [N], each bin once.
    """
    if not is_balanced(ranks) or not len(bin_ends):
        return np.arange(len(bin_ends))
    key = np.array([costs.sum()], dtype=np.uint64)
    num_steps = len(bin_ends) // ranks.world_size
    return arrange(sums_of(costs, bin_ends)[None], ranks.balance, num_steps, ranks.world_size, key).ravel()
