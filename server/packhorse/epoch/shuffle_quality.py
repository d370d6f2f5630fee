"""How well epochs shuffle with locality windows: what these change in the order, and in what is read from disk.

Owns the measures. Leaves windows to `windows`, tables and pictures to `packhorse.analysis`. How often bin-mates meet
again is in `bin_mates`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.bins import PoolArray
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.windows import WindowedView

BYTES_PER_TOKEN = 4
PAGE_BYTES = 4096
NEAR = 0.01  # of an epoch, within which positions are near each other
_CELLS = 16
_BINS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The effect of windows on the order and on disk reads. The corpus is ordered by ids."""

    num_windows: int
    """W; 1 is the global shuffle."""
    chi_square: float
    """Pearson's statistic of 16 parts of the corpus by 16 parts of the epoch, divided by its degrees of freedom. Ideal:
    1.
    """
    neighbours: float
    """How often neighbours in the corpus are within 1 % of an epoch, relative to chance. Ideal: 1."""
    return_epochs: float
    """1 % of sequences come again after less than this, in epochs. Ideal: 0.14."""
    read: float
    """Bytes read, relative to the bytes of all tokens, if the page cache holds only the pages of one window."""
    read_globally: float
    """The same with a global shuffle and a cache of the same size. With a cache for everything it is 1."""


def shuffle_quality(
    plan: PlanIndex, pool: PoolArray, num_windows: int, *, seed: int = 0, first_tokens: PoolArray | None = None
) -> ShuffleQuality:
    """Measures how two epochs of a plan shuffle with windows. Needs about 50 bytes of memory per sequence.

    Example:
        >>> plan = PlanIndex.build({(4, 4): 512}, {4: 1024}, 8)
        >>> fair, windowed = (shuffle_quality(plan, np.arange(1024), windows) for windows in (1, 8))
        >>> round(fair.chi_square), round(windowed.chi_square), windowed.read, windowed.read_globally
        (1, 32, 2.0, 8.0)

    Args:
        plan: the plan's tables.
        pool: as in `EpochView`.
        num_windows: W, in [1, 2^20].
        seed: of the run.
        first_tokens: as in `EpochView`.

    Raises:
        ValueError: num_windows is out of range.
    """
    first, second = (
        WindowedView(plan, pool, seed=seed, epoch=epoch, num_windows=num_windows, first_tokens=first_tokens)
        for epoch in (0, 1)
    )
    plain = WindowedView(plan, pool, seed=seed, epoch=0, num_windows=1, first_tokens=first_tokens)
    positions, sizes = _in_corpus_order(first)
    again, _ = _in_corpus_order(second)
    num_bins = plan.num_bins
    gaps = (num_bins - positions + again) / num_bins
    parts = np.searchsorted(first.window_starts, positions, side="right")
    plain_positions, _ = _in_corpus_order(plain)
    return ShuffleQuality(
        num_windows=num_windows,
        chi_square=_chi_square(positions, num_bins),
        neighbours=float((np.abs(np.diff(positions)) <= NEAR * num_bins).mean() / (2 * NEAR - NEAR**2)),
        return_epochs=float(np.quantile(gaps, 0.01)),
        read=_read(parts, sizes),
        read_globally=_read(plain_positions * num_windows // num_bins, sizes),
    )


def _in_corpus_order(view: WindowedView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions and lengths of all sequences by id: int64 [n] each."""
    ids, starts, lengths, positions = [], [], [], []
    for first in range(0, view.num_bins, _BINS_AT_ONCE):
        bins = view.bins(np.arange(first, min(first + _BINS_AT_ONCE, view.num_bins)))
        ids.append(bins.ids)
        starts.append(np.zeros(len(bins.ids), np.int64) if bins.first_tokens is None else bins.first_tokens)
        lengths.append(bins.lengths)
        positions.append(np.repeat(bins.positions, bins.sizes()))
    order = np.lexsort((np.concatenate(starts), np.concatenate(ids)))
    return np.concatenate(positions)[order], np.concatenate(lengths)[order].astype(np.int64)


def _chi_square(positions: NDArray[np.int64], num_bins: int) -> float:
    """Pearson's statistic of (part of the corpus, part of the epoch) over its degrees of freedom."""
    of_corpus = np.arange(len(positions)) * _CELLS // len(positions)
    table = np.zeros((_CELLS, _CELLS))
    np.add.at(table, (of_corpus, positions * _CELLS // num_bins), 1)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / len(positions)
    known = expected > 0
    return float(((table - expected)[known] ** 2 / expected[known]).sum() / (_CELLS - 1) ** 2)


def _read(parts: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Bytes of the distinct pages that each part of the epoch touches, over those of all tokens.

    Each sequence's part and length in tokens are in corpus order: int64 [n].
    """
    ends = np.cumsum(lengths) * BYTES_PER_TOKEN
    order = np.argsort(parts, kind="stable")
    part, last = parts[order], (ends[order] - 1) // PAGE_BYTES
    first = (ends - lengths * BYTES_PER_TOKEN)[order] // PAGE_BYTES
    shared = (part[1:] == part[:-1]) & (first[1:] == last[:-1])  # the page that the sequence before ends in
    num_pages = int((last - first + 1).sum() - shared.sum())
    return num_pages * PAGE_BYTES / float(ends[-1])
