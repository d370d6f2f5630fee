"""Sources that renumber the bins of another: ranges of positions left out, and short bins joined into long ones.

Owns `SkipSource`, which leaves ranges of positions out, and `JoinedSource`, which joins several short bins into a long
one, so that components of different max_seq_len have bins of one size. Leaves the ranges, and their arithmetic for a
single position, to `topology.Skips`.

Shape letters: N bins asked for, n short bins in them.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins
from packhorse.epoch.sources.source import Locations, Source, checked_positions
from packhorse.epoch.sources.unfilled import Columns, Outline, UnfilledBins, bins_at, find_in
from packhorse.topology import Skips, checked_integer

MAX_ROWS = 1 << 16
"""The most short bins in a long one; the number of a row has 16 bits."""

_ROW_DTYPE = np.dtype(np.uint16)


class SkipSource:
    """A source without some ranges of positions. The other positions are renumbered from 0, without a gap.

    Args:
        source: any epoch.
        skips: ranges of the source's positions; those beyond its end have no effect.
    """

    def __init__(self, source: Source, skips: Skips) -> None:
        self._source = source
        ranges = np.array(skips.within(source.num_bins).ranges, dtype=np.int64).reshape(-1, 2)
        self._firsts, self._ends = ranges[:, 0], ranges[:, 1]
        self._skipped = np.concatenate(([0], np.cumsum(self._ends - self._firsts)))  # positions in the first i ranges
        self._gaps = self._firsts - self._skipped[:-1]  # for each range, the new position of the first bin after it
        self.num_bins = source.num_bins - int(self._skipped[-1])
        self.max_seq_len = source.max_seq_len
        self.max_sequences_per_bin = source.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given new positions; raises a ValueError if one is outside."""
        wanted_positions = checked_positions(positions, self.num_bins)
        return replace(self._source.bins(self._positions_in_source(wanted_positions)), positions=wanted_positions)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given new positions: int64 [N]."""
        return self._source.costs(self._positions_in_source(checked_positions(positions, self.num_bins)), cost_linear)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are, with new positions; -1 if their bin is skipped."""
        found = self._source.locate(ids)
        num_ranges = np.searchsorted(self._firsts, found.positions, side="right")  # ranges that begin at or before it
        # If there is none, index -1 reads the appended 0, and the first condition is False.
        is_skipped = (num_ranges > 0) & (found.positions < np.append(self._ends, 0)[num_ranges - 1])
        is_gone = is_skipped | (found.positions < 0)
        return replace(
            found,
            positions=np.where(is_gone, -1, found.positions - self._skipped[num_ranges]),
            index_in_bin=np.where(is_gone, -1, found.index_in_bin),
        )

    def _positions_in_source(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions in the source that have the given new positions."""
        return positions + self._skipped[np.searchsorted(self._gaps, positions, side="right")]


class JoinedSource:
    """An epoch of long bins, each of several consecutive short bins, its rows; the last one may have fewer.

    Example:
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 3, (2, 2): 2}, {4: 3, 2: 4}, 4)
        >>> short = EpochView(plan, np.arange(7), seed=1, epoch=0)
        >>> long = JoinedSource(short, rows_per_bin=2)
        >>> long.num_bins, long.max_seq_len, long.bins([0]).ids.tolist() == short.bins([0, 1]).ids.tolist()
        (3, 8, True)

    Args:
        source: an epoch of one dataset.
        rows_per_bin: number of short bins in a long one, in [1, 65536].
    """

    def __init__(self, source: Source, rows_per_bin: int) -> None:
        self._source = source
        self._rows_per_bin = checked_integer("rows_per_bin", rows_per_bin, 1, MAX_ROWS)
        self.num_bins = -(-source.num_bins // rows_per_bin)
        self.num_bytes = int(getattr(source, "num_bytes", 0))
        self.max_seq_len = rows_per_bin * source.max_seq_len
        self.max_sequences_per_bin = rows_per_bin * source.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order, with rows; raises a ValueError if one is outside."""
        return bins_at(self, positions)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> UnfilledBins:
        """Finds the bins at the given positions; see `FindingSource.find`. They have no templates.

        Raises:
            ValueError: the source is a mixture.
        """
        short, ends = self._rows_of(positions)
        unfilled, short_outline = self._find_short(short)
        bounds = short_outline.bounds()
        outline.sizes[:] = np.diff(bounds[ends], prepend=0)
        outline.templates[:] = -1
        rows = np.repeat((short % self._rows_per_bin).astype(_ROW_DTYPE), short_outline.sizes)
        return UnfilledBins(
            fill=partial(_fill, unfilled, bounds, rows),
            num_bins=len(positions),
            dtypes={**unfilled.dtypes, "rows": _ROW_DTYPE},
            have_templates=False,
        )

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions: int64 [N]."""
        short, ends = self._rows_of(checked_positions(positions, self.num_bins))
        costs_before = np.concatenate(([0], np.cumsum(self._source.costs(short, cost_linear))))
        return np.diff(costs_before[ends], prepend=0)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch; their indices count the sequences of the whole long bin."""
        found = self._source.locate(ids)
        is_there = found.positions >= 0
        positions, index_in_bin = found.positions.copy(), found.index_in_bin.copy()
        rows = positions[is_there] % self._rows_per_bin
        positions[is_there] //= self._rows_per_bin
        unique, which = np.unique(positions[is_there], return_inverse=True)
        short, ends = self._rows_of(unique)
        _, outline = self._find_short(short)
        num_before = outline.bounds()  # sequences before each short bin
        firsts = np.concatenate(([0], ends))[which]
        index_in_bin[is_there] += num_before[firsts + rows] - num_before[firsts]
        return replace(found, positions=positions, index_in_bin=index_in_bin)

    def _find_short(self, positions: NDArray[np.int64]) -> tuple[UnfilledBins, Outline]:
        """Finds short bins by their positions in the source; returns them and their outline."""
        outline = Outline.of(len(positions))
        return find_in(self._source, positions, outline, 0), outline

    def _rows_of(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the rows of some long bins: their positions in the source, int64 [n], and each bin's end there."""
        firsts = positions * self._rows_per_bin
        num_rows = np.minimum(self._rows_per_bin, self._source.num_bins - firsts)
        ends = np.cumsum(num_rows)
        short = np.repeat(firsts - (ends - num_rows), num_rows)
        return short + np.arange(len(short)), ends


def _fill(
    unfilled: UnfilledBins,
    short_bounds: NDArray[np.int64],
    rows: NDArray[np.uint16],
    bounds: NDArray[np.int64],
    columns: Columns,
) -> int:
    """Fills long bins, as `Fill`: fills their short bins, and writes the row of every sequence.

    Args:
        unfilled: the short bins.
        short_bounds: start of each short bin, counted from the first, and the end of the last: int64 [n + 1].
        rows: row of every sequence.
        bounds: start of each long bin in `columns`, and the end of the last: int64 [N + 1].
        columns: receive the bins.
    """
    columns["rows"][bounds[0] : bounds[-1]] = rows
    return unfilled.fill(short_bounds + bounds[0], columns)
