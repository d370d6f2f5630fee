"""The rounds in which the bins of a PackStream leave: a round has bins for every rank.

Owns the bins of a round that is not full. Leaves which rank takes which bin of a round to `bins_of_ranks`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.packing import OnlineBin, OnlineItem, split_to_multiple
from packhorse.server.base.faults import invalid_field, too_large
from packhorse.server.methods.on_demand.bins_of_ranks import evened, is_balanced, order_of_costs
from packhorse.topology import Topology, cost_of

MAX_ROUND_SEQUENCES = 1 << 18
"""Most sequences in the bins that a PackStream holds until their round is full: about 100 MB, or
25 MB in groups of 8."""


class Rounds:
    """Holds the bins of a PackStream until a round of them is full; then the round leaves in the ranks' order.

    For D ranks a round is `accumulation` · D bins with a balance, D without, and one bin if D is 1.

    Args:
        ranks: the ranks that get the bins.
        capacities: of a bin, as in `OnlinePacker`: int64 [d].
        allow_empty: whether a flush may add empty bins.
        separate_versions: whether sequences of different versions share no bin.
    """

    def __init__(
        self,
        ranks: Topology,
        capacities: NDArray[np.int64],
        *,
        allow_empty: bool = False,
        separate_versions: bool = False,
    ) -> None:
        self._ranks = ranks
        self._capacities = capacities
        self._allow_empty = allow_empty
        self._separate_versions = separate_versions
        self._bins_per_round = 1 if ranks.world_size == 1 else ranks.bins_per_optimizer_step
        self._held: list[OnlineBin] = []
        self._num_sequences = 0

    @property
    def num_sequences(self) -> int:
        """Sequences in the bins held."""
        return self._num_sequences

    def add(self, bins: list[OnlineBin]) -> list[OnlineBin]:
        """Adds bins, and returns the bins of the rounds that are full now.

        Raises:
            ServiceError: the held bins have more than MAX_ROUND_SEQUENCES sequences.
        """
        self._hold(bins)
        leaving = self._take_in_rounds(len(self._held) // self._bins_per_round * self._bins_per_round)
        if self._num_sequences > MAX_ROUND_SEQUENCES:
            raise too_large(
                "options.accumulation",
                MAX_ROUND_SEQUENCES,
                f"the bins of a round that is not full hold {self._num_sequences} sequences, of {MAX_ROUND_SEQUENCES} "
                "at most; flush earlier, or ask for a smaller options.accumulation",
            )
        return leaving

    def flush(self, bins: list[OnlineBin]) -> list[OnlineBin]:
        """Adds the last bins, and returns all held sequences in a multiple of D bins; with a balance, of similar costs.

        Raises:
            ServiceError: there are fewer sequences than bins, and no bin may be empty; all bins stay held.
        """
        self._hold(bins)
        items = [item for bin_ in self._held for item in bin_.items]
        try:
            indices, ends = split_to_multiple(
                np.arange(len(items)),
                np.cumsum([len(bin_.items) for bin_ in self._held], dtype=np.int64),
                np.array([sum(item.lengths) for item in items], dtype=np.int64),
                self._ranks.world_size,
                allow_empty=self._allow_empty,
            )
        except ValueError as error:
            raise invalid_field("options.num_bins_multiple_of", f"options.num_bins_multiple_of: {error}") from None
        if is_balanced(self._ranks) and items:
            sizes = np.array([item.sizes for item in items], dtype=np.int64)
            lengths = [np.array(item.lengths, dtype=np.int64) for item in items]
            costs = np.array([cost_of(of_item, self._ranks.cost_linear).sum() for of_item in lengths], dtype=np.int64)
            kinds = np.array([item.versions[0] for item in items]) if self._separate_versions else None
            indices, ends = evened(indices, ends, sizes, costs, self._capacities, self._ranks, kinds)
        items_of_bins = np.split(indices, ends[:-1]) if len(ends) else []
        self._held = [OnlineBin([items[i] for i in of_bin]) for of_bin in items_of_bins]
        return self._take_in_rounds(len(self._held))

    def holds_version_up_to(self, version: int) -> bool:
        """Whether a held bin has a sequence of this version of the policy or an older one."""
        return any(min(item.versions) <= version for bin_ in self._held for item in bin_.items)

    def take_stale(self, oldest: int) -> list[OnlineItem]:
        """Removes the held bins that have a sequence of a version before `oldest`; returns all items of these bins."""
        stale: list[OnlineBin] = []
        current: list[OnlineBin] = []
        for bin_ in self._held:
            is_stale = any(min(item.versions) < oldest for item in bin_.items)
            (stale if is_stale else current).append(bin_)
        self._held = current
        self._num_sequences -= sum(len(bin_.ids) for bin_ in stale)
        return [item for bin_ in stale for item in bin_.items]

    def _hold(self, bins: list[OnlineBin]) -> None:
        self._held += bins
        self._num_sequences += sum(len(bin_.ids) for bin_ in bins)

    def _take_in_rounds(self, num_bins: int) -> list[OnlineBin]:
        """Removes and returns the first bins, round by round, each in the ranks' order; the last may be smaller."""
        leaving: list[OnlineBin] = []
        for first in range(0, num_bins, self._bins_per_round):
            bins = self._held[first : min(first + self._bins_per_round, num_bins)]
            lengths = np.array([length for bin_ in bins for length in bin_.lengths], dtype=np.int64)
            costs = cost_of(lengths, self._ranks.cost_linear)
            ends = np.cumsum([len(bin_.ids) for bin_ in bins], dtype=np.int64)
            leaving += [bins[index] for index in order_of_costs(costs, ends, self._ranks).tolist()]
        del self._held[:num_bins]
        self._num_sequences -= sum(len(bin_.ids) for bin_ in leaving)
        return leaving
