"""Locality windows: an epoch whose bins draw their sequences from one contiguous range of ids at a time.

Owns `WindowedView`: which window a position lies in, and the windows used last. A window is a plan of its own over its
part of the pool, so everything inside it is `EpochView`'s; the arithmetic of windows is `_window_kernels`'.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins, PoolArray, read_only
from packhorse.epoch.kernels import window_plans as kernels
from packhorse.epoch.kernels.permutation import ROW_WIDTH, Permutation
from packhorse.epoch.keys import checked_seed, derive_key
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.found import Found, Outline, made, rearranged
from packhorse.epoch.sources.prepared import EpochView, located
from packhorse.epoch.sources.source import Locations, checked_positions
from packhorse.topology import checked_integer

MAX_WINDOWS = 1 << 20
"""The most windows of an epoch: their beginnings then take 16 MB."""

_MOST_BYTES = 16 << 20
"""What the windows used last take together, where there is more than one."""

_LOOKUP_BITS = 12


class WindowedView:
    """One epoch under one seed, in locality windows.

    A window takes about 1 / num_windows of every template's bins, and of every length the next ids that no window
    before it took. Windows come in a keyed order, and the bins of a window too. Every sequence comes exactly once, and
    from epoch to epoch other sequences of a window meet in a bin. One window is the plain epoch, bin for bin.

    Example:
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> view = WindowedView(plan, np.arange(6), seed=1, epoch=0, num_windows=3)
        >>> sorted(view.bins([0, 1]).ids.tolist()) in ([0, 1], [2, 3], [4, 5])
        True

    Args:
        plan: the plan's tables.
        pool: as `EpochView` takes it; ascending by (length, id), so that neighbours are near on disk.
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        num_windows: W, in [1, 2^20].
        first_tokens: as `EpochView` takes them.

    Raises:
        ValueError: an argument is out of range, or the pool's or first_tokens' size is not the plan's.
    """

    def __init__(
        self,
        plan: PlanIndex,
        pool: PoolArray,
        *,
        seed: int,
        epoch: int,
        num_windows: int,
        first_tokens: PoolArray | None = None,
    ) -> None:
        self.num_windows = checked_integer("num_windows", num_windows, 1, MAX_WINDOWS)
        self.seed = checked_seed("seed", seed)
        self.epoch = checked_seed("epoch", epoch)
        if len(pool) != plan.pool_size:
            raise ValueError(f"the pool has {len(pool)} ids, but the plan uses {plan.pool_size}")
        self._plan = plan
        self._pool = read_only(pool)
        self._first_tokens = None if first_tokens is None else read_only(first_tokens)
        self._shifts = np.empty(len(plan.template_size), dtype=np.int64)
        kernels.fill_shifts(np.uint64(derive_key(seed, epoch, "window times")), num_windows, self._shifts)
        sizes = np.empty(num_windows, dtype=np.int64)
        kernels.count_bins(plan.first_bin, self._shifts, sizes)
        order = Permutation(num_windows, derive_key(seed, epoch, "window order"))
        self._window_at = order.forward(np.arange(num_windows))
        self._order = order
        self._starts = np.concatenate(([0], np.cumsum(sizes[self._window_at])))
        self._lock = threading.Lock()
        self._views: OrderedDict[int, EpochView] = OrderedDict()

    @property
    def num_bins(self) -> int:
        """B: bins in the epoch."""
        return self._plan.num_bins

    @property
    def num_bytes(self) -> int:
        """Memory that this epoch takes beside its dataset, its windows included."""
        return (
            self._shifts.nbytes
            + self._window_at.nbytes
            + self._starts.nbytes
            + self._most_windows * self._bytes_per_window
        )

    @property
    def window_starts(self) -> NDArray[np.int64]:
        """Where the windows begin, in the order in which they come, and one past the last position: int64 [W + 1]."""
        return self._starts

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        return self._plan.max_seq_len

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        return self._plan.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; a ValueError where one is outside."""
        wanted = checked_positions(positions, self.num_bins)
        outline = Outline.of(len(wanted))
        return made(outline, self.find(wanted, outline), wanted)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> Found:
        """Finds the bins at the given positions, as `EpochView.find` does."""

        def find(ascending: NDArray[np.int64], outline: Outline) -> Found:
            return Found.together(
                [
                    view.find(inside, outline.part(ours), first_template)
                    for view, ours, inside in self._each_window(ascending)
                ]
            )

        if (positions[1:] >= positions[:-1]).all():
            return find(positions, outline)
        order = np.argsort(positions, kind="stable")
        ascending = Outline.of(len(positions))
        return rearranged(find(positions[order], ascending), ascending, np.argsort(order), outline)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of the bins at the given positions: int64 [N]."""
        wanted = checked_positions(positions, self.num_bins)
        order = np.argsort(wanted, kind="stable")
        costs = np.empty(len(wanted), dtype=np.int64)
        for view, ours, inside in self._each_window(wanted[order]):
            costs[order[ours]] = view.costs(inside, cost_linear)
        return costs

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch.

        Args:
            ids: int [n].
        """
        return located(self._plan, self._pool, self._first_tokens, ids, self._place)

    def _place(
        self, length_index: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        windows = np.empty(len(entries), dtype=np.int64)
        plan = self._plan
        kernels.find_windows(
            plan.tables, plan.run_tables, self._shifts, self.num_windows, length_index, entries, windows
        )
        positions = np.full(len(entries), -1, dtype=np.int64)
        index_in_bin = np.full(len(entries), -1, dtype=np.int64)
        for window in np.unique(windows[windows >= 0]).tolist():
            inside = windows == window
            there, index_in_bin[inside] = self._view(window).locate_entries(length_index[inside], entries[inside])
            positions[inside] = self._starts[self._order.inverse(window)] + there
        return positions, index_in_bin

    def _each_window(self, ascending: NDArray[np.int64]) -> Iterator[tuple[EpochView, slice, NDArray[np.int64]]]:
        """Gives every window there is a position of: its view, which of the positions, and those in the window.

        Where there is no position, it gives the first window, so that there is one.
        """
        first, last = (
            (np.searchsorted(self._starts, ascending[[0, -1]], side="right") - 1).tolist() if len(ascending) else (0, 0)
        )
        edges = [0, *np.searchsorted(ascending, self._starts[first + 1 : last + 1]).tolist(), len(ascending)]
        for ordinal, (begin, end) in enumerate(pairwise(edges), first):
            if begin < end or first == last:
                yield (
                    self._view(int(self._window_at[ordinal])),
                    slice(begin, end),
                    ascending[begin:end] - self._starts[ordinal],
                )

    def _view(self, window: int) -> EpochView:
        """Returns a window's epoch, laid out once for all threads."""
        with self._lock:
            if window not in self._views:
                self._views[window] = EpochView(
                    self._plan_of(window),
                    self._pool,
                    seed=self.seed,
                    epoch=self.epoch,
                    first_tokens=self._first_tokens,
                    window=window,
                )
                while len(self._views) > self._most_windows:
                    self._views.popitem(last=False)
            self._views.move_to_end(window)
            return self._views[window]

    @property
    def _most_windows(self) -> int:
        """How many windows are laid out at a time."""
        return min(self.num_windows, max(2, _MOST_BYTES // self._bytes_per_window))

    @property
    def _bytes_per_window(self) -> int:
        """What a window's own tables and parameters take."""
        plan, words_of_length = self._plan, 2 + ROW_WIDTH
        of_lookup = plan.lookup.itemsize << _LOOKUP_BITS
        return plan.first_bin.nbytes + plan.run_first_draw.nbytes + 8 * words_of_length * len(plan.lengths) + of_lookup

    def _plan_of(self, window: int) -> PlanIndex:
        """Returns a window's plan: the same templates with the window's multiplicities, over its part of the pool."""
        plan = self._plan
        first_bin, draws = np.empty_like(plan.first_bin), np.empty_like(plan.run_first_draw)
        counts, pool_starts = np.empty_like(plan.counts), np.empty_like(plan.pool_starts)
        kernels.lay_out(plan.tables, self._shifts, self.num_windows, window, first_bin, draws, counts, pool_starts)
        shift = max(0, int(first_bin[-1]).bit_length() - _LOOKUP_BITS)
        lookup = np.empty((int(first_bin[-1]) >> shift) + 2, dtype=plan.lookup.dtype)
        kernels.fill_lookup(first_bin, shift, lookup)
        return replace(
            plan,
            first_bin=first_bin,
            run_first_draw=draws,
            counts=counts,
            pool_starts=pool_starts,
            lookup=lookup,
            lookup_shift=shift,
        )
