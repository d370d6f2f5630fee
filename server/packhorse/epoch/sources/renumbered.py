"""Short bins joined into long ones: a source each of whose bins is several bins of another, one after the other.

Owns the arithmetic between the two numberings, and which row, that is which of the short bins, a sequence is in. So
components of different max_seq_len become bins of one size, and whatever counts bins goes on counting equal tokens.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins, PoolArray
from packhorse.epoch.sources.found import Columns, Found, Outline, find_in, made
from packhorse.epoch.sources.source import Locations, Source, checked_positions
from packhorse.topology import checked_integer

MAX_ROWS = 1 << 16
"""The most short bins in a long one: rows are numbered in 16 bits."""


class JoinedSource:
    """An epoch of long bins; the last one has less where the short ones do not come out even.

    Example:
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 3, (2, 2): 2}, {4: 3, 2: 4}, 4)
        >>> short = EpochView(plan, np.arange(7), seed=1, epoch=0)
        >>> long = JoinedSource(short, rows_per_bin=2)
        >>> long.num_bins, long.max_seq_len, long.bins([0]).ids.tolist() == short.bins([0, 1]).ids.tolist()
        (3, 8, True)

    Args:
        source: an epoch of one dataset.
        rows_per_bin: k, short bins in a long one, in [1, 65536].
    """

    def __init__(self, source: Source, rows_per_bin: int) -> None:
        self._source = source
        self._rows_per_bin = checked_integer("rows_per_bin", rows_per_bin, 1, MAX_ROWS)

    @property
    def num_bins(self) -> int:
        """Long bins in the epoch."""
        return -(-self._source.num_bins // self._rows_per_bin)

    @property
    def num_bytes(self) -> int:
        """Memory that this epoch takes beside its dataset."""
        return int(getattr(self._source, "num_bytes", 0))

    @property
    def max_seq_len(self) -> int:
        """A long bin's capacity in tokens."""
        return self._rows_per_bin * self._source.max_seq_len

    @property
    def max_sequences_per_bin(self) -> int:
        """No long bin has more sequences."""
        return self._rows_per_bin * self._source.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order, with rows; a ValueError where one is outside."""
        wanted = checked_positions(positions, self.num_bins)
        outline = Outline.of(len(wanted))
        return made(outline, self.find(wanted, outline), wanted)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> Found:
        """Finds the bins at the given positions, as `EpochView.find` does; they are of no template.

        Raises:
            ValueError: the source is a mixture: components are joined each by itself, and mixed then.
        """
        short, ends = self._short(positions)
        found, own = self._find_short(short)
        bounds = own.bounds()
        outline.sizes[:] = np.diff(bounds[ends], prepend=0)
        outline.templates[:] = -1
        rows = np.repeat((short % self._rows_per_bin).astype(np.uint16), own.sizes)
        return Found(
            fill=partial(_fill, found, bounds, rows),
            num_bins=len(positions),
            ids_dtype=found.ids_dtype,
            columns={**found.columns, "rows": rows.dtype},
            have_templates=False,
        )

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of the bins at the given positions: int64 [N]."""
        short, ends = self._short(checked_positions(positions, self.num_bins))
        up_to = np.concatenate(([0], np.cumsum(self._source.costs(short, cost_linear))))
        return np.diff(up_to[ends], prepend=0)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch; indices are among the sequences of the whole long bin.

        Args:
            ids: int [n].
        """
        found = self._source.locate(ids)
        is_there = found.positions >= 0
        positions, index_in_bin = found.positions.copy(), found.index_in_bin.copy()
        rows = positions[is_there] % self._rows_per_bin
        positions[is_there] //= self._rows_per_bin
        asked, which = np.unique(positions[is_there], return_inverse=True)
        short, ends = self._short(asked)
        up_to = self._find_short(short)[1].bounds()
        firsts = np.concatenate(([0], ends[:-1]))[which] if len(asked) else which
        index_in_bin[is_there] += up_to[firsts + rows] - up_to[firsts]
        return replace(found, positions=positions, index_in_bin=index_in_bin)

    def _find_short(self, positions: NDArray[np.int64]) -> tuple[Found, Outline]:
        """Returns short bins, and what is known of them."""
        outline = Outline.of(len(positions))
        return find_in(self._source, positions, outline, 0), outline

    def _short(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the short bins of long ones, one after the other, and where those of each end: int64 [n], [N]."""
        firsts = positions * self._rows_per_bin
        num_rows = np.minimum(self._rows_per_bin, self._source.num_bins - firsts)
        ends = np.cumsum(num_rows)
        num = int(ends[-1]) if len(ends) else 0
        return np.repeat(firsts - (ends - num_rows), num_rows) + np.arange(num), ends


def _fill(
    found: Found,
    own_bounds: NDArray[np.int64],
    rows: NDArray[np.uint16],
    bounds: NDArray[np.int64],
    ids: PoolArray,
    lengths: NDArray[np.int32],
    columns: Columns,
) -> int:
    """Makes long bins: short ones that were found, within bounds of their own, and the row of every sequence."""
    columns["rows"][bounds[0] : bounds[-1]] = rows
    return found.fill(own_bounds + bounds[0], ids, lengths, columns)
