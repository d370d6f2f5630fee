"""The order in which packed bins leave: bin k belongs to rank k mod D, and ranks wait for each other little.

Owns the fields that say how (`num_bins_multiple_of`, `accumulation`, `balance`, `cost_linear`), the order itself, and
the rounds in which a PackStream's bins leave. Leaves the packing to `packhorse.packing`, and the arrangement of a
window to `packhorse.epoch.balance`.

Legend: S sequences, N bins, D ranks.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch import arrange
from packhorse.packing import OnlineBin, split_to_multiple
from packhorse.server.base.faults import invalid_field, too_large
from packhorse.server.methods import requests
from packhorse.topology import Balance, Topology
from packhorse.v1 import packing_pb2 as pb

MAX_MULTIPLE = 1 << 16
"""Of `num_bins_multiple_of`: fewer bins than that are split off one by one. Of the bins in a round, too."""

MAX_ROUND_SEQUENCES = 1 << 18
"""In the bins that a PackStream holds until their round is full: some 20 MB."""


def ranks_of(message: pb.PackSequencesRequest | pb.PackStreamOptions, *, within: str = "") -> Topology:
    """Returns the ranks that a message packs for; a ServiceError names a field that is out of range.

    Args:
        message: has `num_bins_multiple_of`, `balance` and `cost_linear`, and options of a stream `accumulation`.
        within: the field that holds the message, with a dot.
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


def check_costs(ranks: Topology, num_tokens: int, longest: int, *, within: str = "") -> None:
    """Refuses costs of which a sum would not fit into 64 bits; a ServiceError names `cost_linear`.

    Args:
        ranks: with a balance or without, where costs do not matter.
        num_tokens: of all sequences that are balanced together.
        longest: of them, in tokens.
        within: the field that holds the message, with a dot.
    """
    if ranks.balance is not Balance.NONE and num_tokens * (ranks.cost_linear + longest) >= 1 << 62:
        raise invalid_field(
            f"{within}cost_linear",
            f"{within}cost_linear {ranks.cost_linear} gives {num_tokens} tokens, in sequences of up to {longest}, a "
            "cost of more than 62 bits; give a smaller one, or no balance",
        )


def order_of_bins(lengths: NDArray[np.int64], bin_ends: NDArray[np.int64], ranks: Topology) -> NDArray[np.int64]:
    """Returns which bin leaves first, second, …, so that bin k of this order is rank k mod D's.

    The sum of all costs is the key of what is left to chance, so that no rank always gets the most expensive bins.

    Example:
        >>> ranks = Topology(world_size=2, balance=Balance.OPTIMIZER_STEP, cost_linear=0)
        >>> order = order_of_bins(np.array([5, 4, 4, 3]), np.array([1, 2, 3, 4]), ranks)
        >>> sorted(sorted(order[rank::2].tolist()) for rank in range(2))  # 5² + 3² beside 4² + 4²
        [[0, 3], [1, 2]]

    Args:
        lengths: int64 [S], in tokens, bin after bin.
        bin_ends: int64 [N], exclusive end of every bin in `lengths`; N is a multiple of D.
        ranks: how many there are, and their balance.

    Returns:
        int64 [N], each bin once.
    """
    if ranks.balance is Balance.NONE or ranks.world_size == 1 or not len(bin_ends):
        return np.arange(len(bin_ends))
    up_to = np.concatenate(([0], np.cumsum(lengths * (ranks.cost_linear + lengths))))
    costs = np.diff(up_to[bin_ends], prepend=0)
    key = np.array([up_to[-1]], dtype=np.uint64)
    num_steps = len(bin_ends) // ranks.world_size
    return arrange(costs[None], ranks.balance, num_steps, ranks.world_size, key).ravel()


class Rounds:
    """Holds the bins of a PackStream until a round of them is there, which leaves in the ranks' order.

    A round is `accumulation` · D bins with a balance, D without, and one bin where D is 1.

    Args:
        ranks: that the bins are for.
        allow_empty: whether a flush may add empty bins.
    """

    def __init__(self, ranks: Topology, *, allow_empty: bool = False) -> None:
        self._ranks = ranks
        self._allow_empty = allow_empty
        self._bins_per_round = 1 if ranks.world_size == 1 else ranks.bins_per_optimizer_step
        self._held: list[OnlineBin] = []
        self._num_sequences = 0

    @property
    def num_sequences(self) -> int:
        """Sequences in the bins held."""
        return self._num_sequences

    def add(self, bins: list[OnlineBin]) -> list[OnlineBin]:
        """Takes bins in, and returns those of the rounds that are full now.

        Raises:
            ServiceError: the bins of a round hold more than MAX_ROUND_SEQUENCES.
        """
        self._hold(bins)
        leaving = self._leave(len(self._held) // self._bins_per_round * self._bins_per_round)
        if self._num_sequences > MAX_ROUND_SEQUENCES:
            raise too_large(
                "options.accumulation",
                MAX_ROUND_SEQUENCES,
                f"the bins of a round that is not full hold {self._num_sequences} sequences, of {MAX_ROUND_SEQUENCES} "
                "at most; flush earlier, or ask for a smaller options.accumulation",
            )
        return leaving

    def flush(self, bins: list[OnlineBin]) -> list[OnlineBin]:
        """Takes the last bins in, and returns all that are held, split to a multiple of D.

        Raises:
            ServiceError: there are fewer sequences than bins, and no bin may be empty; all bins stay here.
        """
        self._hold(bins)
        items = [item for bin_ in self._held for item in _items(bin_)]
        try:
            indices, ends = split_to_multiple(
                np.arange(len(items)),
                np.cumsum([len(bin_.group_sizes or bin_.ids) for bin_ in self._held], dtype=np.int64),
                np.array([sum(item.lengths) for item in items], dtype=np.int64),
                self._ranks.world_size,
                allow_empty=self._allow_empty,
            )
        except ValueError as error:
            raise invalid_field("options.num_bins_multiple_of", f"options.num_bins_multiple_of: {error}") from None
        parts = np.split(indices, ends[:-1]) if len(ends) else []
        self._held = [_bin([items[i] for i in part]) for part in parts]
        return self._leave(len(self._held))

    def _hold(self, bins: list[OnlineBin]) -> None:
        self._held += bins
        self._num_sequences += sum(len(bin_.ids) for bin_ in bins)

    def _leave(self, num_bins: int) -> list[OnlineBin]:
        """Lets the oldest bins go, round by round; the last round may be a smaller multiple of D."""
        leaving: list[OnlineBin] = []
        for first in range(0, num_bins, self._bins_per_round):
            bins = self._held[first : min(first + self._bins_per_round, num_bins)]
            lengths = np.array([length for bin_ in bins for length in bin_.lengths], dtype=np.int64)
            ends = np.cumsum([len(bin_.ids) for bin_ in bins], dtype=np.int64)
            leaving += [bins[index] for index in order_of_bins(lengths, ends, self._ranks).tolist()]
        del self._held[:num_bins]
        self._num_sequences -= sum(len(bin_.ids) for bin_ in leaving)
        return leaving


def _items(bin_: OnlineBin) -> Iterator[OnlineBin]:
    """Yields each item of a bin as a bin of its own."""
    end = 0
    for size in bin_.group_sizes or [1] * len(bin_.ids):
        start, end = end, end + size
        yield OnlineBin(bin_.ids[start:end], bin_.lengths[start:end], [size])


def _bin(items: list[OnlineBin]) -> OnlineBin:
    """Joins items to a bin."""
    ids = [number for item in items for number in item.ids]
    sizes = None if len(ids) == len(items) else [len(item.ids) for item in items]
    return OnlineBin(ids, [length for item in items for length in item.lengths], sizes)
