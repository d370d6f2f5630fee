"""How well epochs are shuffled with locality windows, and how much less is read from disk: measures of both.

Leaves windows to `sources/windows`, tables and pictures to `packhorse.analysis`, and how often bin-mates meet again to
`bin_mates`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.bins import PoolArray
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.windows import WindowedView

BYTES_PER_TOKEN = 4  # of a corpus of uint32 tokens
PAGE_BYTES = 4096  # of the page cache
NEAR = 0.01  # positions that differ by at most this share of an epoch count as near
_RETURNED = 0.01  # share of the sequences that have come again after `return_epochs`
_CELLS = 16  # parts of the corpus, and of the epoch, for the chi-square statistic
_BINS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The effect of windows on the order and on disk reads, if the corpus lies on disk in the order of ids."""

    num_windows: int
    """W, the number of windows; 1 is the global shuffle."""
    chi_square: float
    """Pearson's statistic of how 16 parts of the corpus spread over 16 parts of the epoch, divided by its degrees of
    freedom. It is 1 for an ideal shuffle.
    """
    neighbours: float
    """How often neighbours in the corpus come within 1 % of an epoch, relative to chance; 1 for an ideal shuffle."""
    return_epochs: float
    """Epochs after which 1 % of the sequences have come again in the next epoch; 0.14 for an ideal shuffle."""
    read: float
    """Bytes read from disk, relative to the bytes of all tokens, if the page cache holds the pages of one window."""
    read_globally: float
    """Bytes read with a global shuffle and a page cache of the same size, relative to the bytes of all tokens."""


def shuffle_quality(
    plan: PlanIndex, pool: PoolArray, num_windows: int, *, seed: int = 0, first_tokens: PoolArray | None = None
) -> ShuffleQuality:
    """Measures two epochs of a plan that are shuffled in windows. Needs about 50 bytes of memory for each sequence.

    Example:
        >>> plan = PlanIndex.build({(4, 4): 512}, {4: 1024}, 8)
        >>> fair, windowed = (shuffle_quality(plan, np.arange(1024), windows) for windows in (1, 8))
        >>> round(fair.chi_square), round(windowed.chi_square), windowed.read, windowed.read_globally
        (1, 32, 2.0, 8.0)

    Args:
        plan: the plan's tables.
        pool: as in `EpochView`.
        num_windows: W, the number of windows, in [1, 2^20].
        seed: the run's seed.
        first_tokens: as in `EpochView`.

    Raises:
        ValueError: num_windows is out of range.
    """
    first, second = (
        WindowedView(plan, pool, seed=seed, epoch=epoch, num_windows=num_windows, first_tokens=first_tokens)
        for epoch in (0, 1)
    )
    unwindowed = WindowedView(plan, pool, seed=seed, epoch=0, num_windows=1, first_tokens=first_tokens)
    positions, lengths = _in_corpus_order(first)
    next_positions, _ = _in_corpus_order(second)
    num_bins = plan.num_bins
    gaps = (num_bins - positions + next_positions) / num_bins  # epochs until each sequence comes again
    windows = np.searchsorted(first.window_starts, positions, side="right")
    global_positions, _ = _in_corpus_order(unwindowed)
    global_windows = global_positions * num_windows // num_bins  # as many equal ranges of positions as windows
    near_share = float((np.abs(np.diff(positions)) <= NEAR * num_bins).mean())
    near_by_chance = 2 * NEAR - NEAR**2  # share of random pairs that are near
    return ShuffleQuality(
        num_windows=num_windows,
        chi_square=_chi_square(positions, num_bins),
        neighbours=near_share / near_by_chance,
        return_epochs=float(np.quantile(gaps, _RETURNED)),
        read=_read_share(windows, lengths),
        read_globally=_read_share(global_windows, lengths),
    )


def _in_corpus_order(view: WindowedView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the positions and lengths of all sequences, by ascending id: int64 [n] each."""
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
    """Returns Pearson's statistic of (part of the corpus, part of the epoch), divided by its degrees of freedom."""
    corpus_parts = np.arange(len(positions)) * _CELLS // len(positions)
    epoch_parts = positions * _CELLS // num_bins
    table = np.zeros((_CELLS, _CELLS))
    np.add.at(table, (corpus_parts, epoch_parts), 1)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / len(positions)
    known = expected > 0
    return float(((table - expected)[known] ** 2 / expected[known]).sum() / (_CELLS - 1) ** 2)


def _read_share(windows: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Returns the bytes of all pages read, relative to the bytes of all tokens; a window of an epoch reads a page once.

    Args:
        windows: window of the epoch in which each sequence comes, in the order of the corpus: int64 [n].
        lengths: lengths in tokens, in the same order: int64 [n].
    """
    ends = np.cumsum(lengths) * BYTES_PER_TOKEN
    order = np.argsort(windows, kind="stable")  # of reading: window after window, each in the order of the corpus
    window = windows[order]
    first_page = (ends - lengths * BYTES_PER_TOKEN)[order] // PAGE_BYTES
    last_page = (ends[order] - 1) // PAGE_BYTES
    # Whether a sequence begins in the page in which the one before it ends, which is read once.
    is_shared = (window[1:] == window[:-1]) & (first_page[1:] == last_page[:-1])
    num_pages = int((last_page - first_page + 1).sum() - is_shared.sum())
    return num_pages * PAGE_BYTES / float(ends[-1])
