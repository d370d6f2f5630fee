"""A source with ranges of positions left out, of any other source.

Owns the renumbering over arrays of positions, by prefix sums and bisection: O(log ranges) a position. Leaves the ranges
to `packhorse.topology.Skips`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins
from packhorse.epoch.sources.source import Locations, Source, checked_positions
from packhorse.topology import Skips


class SkipSource:
    """What is left of a source; positions are numbered again from 0, without a gap.

    Args:
        source: any epoch.
        skips: ranges of its positions; what lies beyond its end skips nothing.
    """

    def __init__(self, source: Source, skips: Skips) -> None:
        self._source = source
        ranges = skips.within(source.num_bins).ranges
        self._firsts = np.array([first for first, _ in ranges], dtype=np.int64)
        self._ends = np.array([end for _, end in ranges], dtype=np.int64)
        self._skipped = np.concatenate(([0], np.cumsum(self._ends - self._firsts)))
        self._gaps = self._firsts - self._skipped[:-1]

    @property
    def num_bins(self) -> int:
        """Bins that are left."""
        return self._source.num_bins - int(self._skipped[-1])

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        return self._source.max_seq_len

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        return self._source.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at positions of what is left; a ValueError where one is outside."""
        wanted = checked_positions(positions, self.num_bins)
        return replace(self._source.bins(self._to_whole(wanted)), positions=wanted)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of the bins at positions of what is left: int64 [N]."""
        return self._source.costs(self._to_whole(checked_positions(positions, self.num_bins)), cost_linear)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in what is left; position -1 where their bin is skipped."""
        found = self._source.locate(ids)
        behind = np.searchsorted(self._firsts, found.positions, side="right")
        is_skipped = (behind > 0) & (found.positions < np.append(self._ends, 0)[behind - 1])
        is_gone = is_skipped | (found.positions < 0)
        return replace(
            found,
            positions=np.where(is_gone, -1, found.positions - self._skipped[behind]),
            index_in_bin=np.where(is_gone, -1, found.index_in_bin),
        )

    def _to_whole(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions + self._skipped[np.searchsorted(self._gaps, positions, side="right")]
