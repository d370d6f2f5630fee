"""Which rank takes which bin that was packed without a dataset: bin k belongs to rank k mod D.

Owns the fields of PackSequences and PackStream that say how many ranks there are and where they wait, and which bins
make them wait least. Leaves packs of equal cost to `packhorse.packing`, and the order of bins to `packhorse.epoch`.

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
"""The most that `num_bins_multiple_of` may be, because fewer bins than that are split off one by one; and the most bins
in a round."""


WAITS_MUCH = 1.05
"""What the slowest rank takes, in means, before one more round of bins is tried."""

MOST_COST = 1 << 62
"""The most that all sequences that are balanced together may cost."""


def ranks_of(message: pb.PackSequencesRequest | pb.PackStreamOptions, *, within: str = "") -> Topology:
    """Returns the ranks that a message packs for; a ServiceError names a field that is out of range, in `within`."""
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


def check_costs(ranks: Topology, num_tokens: int, longest: int, *, within: str = "") -> None:
    """Refuses costs whose sum would not fit into 64 bits; a ServiceError names `cost_linear`, in `within`.

    `num_tokens` are of all sequences that are balanced together, `longest` of one.
    """
    if ranks.balance is not Balance.NONE and num_tokens * (ranks.cost_linear + longest) >= MOST_COST:
        raise invalid_field(
            f"{within}cost_linear",
            f"{within}cost_linear {ranks.cost_linear} gives {num_tokens} tokens, in sequences of up to {longest}, a "
            "cost of more than 62 bits; give a smaller one, or no balance",
        )


def is_balanced(ranks: Topology) -> bool:
    """Whether there are ranks that wait for each other."""
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
    """Returns the bins for which ranks wait least, of three: those of `even_bins`, the given ones, and one more round.

    The given ones win if single items cost more than a mean bin, because bins of several sizes share rounds better. One
    more round is tried only if the slowest rank takes more than WAITS_MUCH of the mean: bins that are full to the last
    token can exchange nothing.

    Args:
        indices: as in `even_bins`.
        bin_ends: as in `even_bins`; N is a multiple of D.
        sizes: as in `even_bins`.
        costs: as in `even_bins`.
        capacities: as in `even_bins`.
        ranks: how many there are, and their balance.
        kinds: as in `even_bins`.
    """

    def duration(bins: tuple[NDArray[np.int64], NDArray[np.int64]]) -> int:
        return _duration(costs[bins[0]], bins[1], ranks)

    best = min(even_bins(indices, bin_ends, sizes, costs, capacities, kinds), (indices, bin_ends), key=duration)
    num_more = len(bin_ends) + ranks.world_size
    if duration(best) * ranks.world_size <= WAITS_MUCH * costs.sum() or num_more > len(indices):
        return best
    more = split_to_multiple(indices, bin_ends, sizes[:, 0], num_more)
    return min(best, even_bins(*more, sizes, costs, capacities, kinds), key=duration)


def _duration(costs: NDArray[np.int64], bin_ends: NDArray[np.int64], ranks: Topology) -> int:
    """Returns what the slowest ranks' bins cost; `costs` are of items, bin after bin."""
    order = order_of_costs(costs, bin_ends, ranks)
    in_order = sums_of(costs, bin_ends)[order].reshape(-1, ranks.world_size)
    return int(in_order.max(axis=1).sum() if ranks.balance is Balance.MICRO_STEP else in_order.sum(axis=0).max())


def sums_of(costs: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sum of each stretch of costs: int64 [n].

    Example:
        >>> sums_of(np.array([1, 2, 3]), np.array([2, 2, 3])).tolist()
        [3, 0, 3]

    Args:
        costs: stretch after stretch.
        ends: exclusive end of every stretch: int64 [n].
    """
    return np.diff(np.concatenate(([0], np.cumsum(costs)))[ends], prepend=0)


def order_of_costs(costs: NDArray[np.int64], bin_ends: NDArray[np.int64], ranks: Topology) -> NDArray[np.int64]:
    """Returns which bin leaves first, second, …, so that bin k of this order is rank k mod D's.

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
