"""Locality windows: an epoch whose bins draw their sequences from one contiguous range of ids at a time.

A window is an `EpochView` of a plan with the same templates, but fewer bins of each, over a part of the pool. Owns
`WindowedView`, which divides the epoch into windows and makes a window's plan when a position in it is wanted. Leaves
everything inside a window to `EpochView`.

The copies of a template are spread evenly over the windows, in exact arithmetic. Copy i of template t, which has M_t
copies, comes at the time (i + u_t) / M_t of the epoch, where u_t is random in [0, 1). Window w of W has the copies with
a time in [w / W, (w + 1) / W). So its first copy is the least i with i·W >= w·M_t - u_t·W. Only floor(u_t·W) matters
here. With the template's shift = W - 1 - floor(u_t·W), a keyed number in [0, W), this i is (w·M_t + shift) // W.

Shape letters: W windows, T templates, N bins, n entries of the pool.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import inlined, kernel_or, plain_form
from packhorse.epoch.bins import Bins, PoolArray, read_only
from packhorse.epoch.permutation import GOLDEN, ROW_WIDTH, Permutation, mix
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.seeds import checked_seed, derive_key
from packhorse.epoch.sources.prepared import EpochView, check_pool, located
from packhorse.epoch.sources.source import Locations, checked_positions
from packhorse.epoch.sources.unfilled import Outline, UnfilledBins, bins_at, concatenated, reordered
from packhorse.storage import BoundedCache
from packhorse.topology import checked_integer

MAX_WINDOWS = 1 << 20
"""The most windows of an epoch. Their tables then take 16 MB."""

_MOST_BYTES = 16 << 20
"""Memory of the windows that are remembered, those used last; at least two are, whatever they take."""

_LOOKUP_BITS = 12
"""Bits of the greatest index into the `lookup` of a window's plan."""

_32 = np.uint64(32)


class _WindowPart(NamedTuple):
    """Those of some positions that are in one window."""

    view: EpochView
    """The window's epoch."""
    indices: slice
    """Where these positions are among all."""
    positions: NDArray[np.int64]
    """These positions, counted from the window's begin."""


class WindowedView:
    """One epoch under one seed, in locality windows.

    A window has about 1 / num_windows of every template's bins, and the ids of every length that follow those of the
    window before. Windows come in a keyed order, and so do the bins of a window. Every sequence comes exactly once. In
    another epoch, other sequences of about the same window share a bin. A single window equals `EpochView`, bin for
    bin.

    Example:
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> view = WindowedView(plan, np.arange(6), seed=1, epoch=0, num_windows=3)
        >>> sorted(view.bins([0, 1]).ids.tolist()) in ([0, 1], [2, 3], [4, 5])
        True

    Args:
        plan: the plan's tables.
        pool: as in `EpochView`; ascending by (length, id), so that neighbours are near on disk.
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        num_windows: W, the number of windows, in [1, 2^20].
        first_tokens: as in `EpochView`.

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
        check_pool(plan, pool, first_tokens)
        self._plan = plan
        self.num_bins = plan.num_bins
        self.max_seq_len = plan.max_seq_len
        self.max_sequences_per_bin = plan.max_sequences_per_bin
        self._pool = read_only(pool)
        self._first_tokens = None if first_tokens is None else read_only(first_tokens)
        self._shifts = np.empty(len(plan.template_size), dtype=np.int64)
        _fill_shifts(np.uint64(derive_key(seed, epoch, "window times")), num_windows, self._shifts)
        sizes = np.empty(num_windows, dtype=np.int64)
        _count_bins(plan.first_bin, self._shifts, sizes)
        self._order = Permutation(num_windows, derive_key(seed, epoch, "window order"))
        self._window_at = self._order.forward(np.arange(num_windows))
        self.window_starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(sizes[self._window_at])))
        """First position of each window, in the order in which they come, and num_bins at the end: int64 [W + 1]."""
        # Of a window: 8 bytes for each of a length's count, pool_start and parameters, and the tables of its plan.
        bytes_per_window = 8 * (2 + ROW_WIDTH) * len(plan.lengths) + plan.first_bin.nbytes
        bytes_per_window += plan.repeat_first_draw.nbytes + (plan.lookup.itemsize << _LOOKUP_BITS)
        most_windows = min(num_windows, max(2, _MOST_BYTES // bytes_per_window))
        self._views: BoundedCache[int, EpochView] = BoundedCache(most_windows)
        self._lock = threading.Lock()
        common_bytes = self._shifts.nbytes + self._window_at.nbytes + self.window_starts.nbytes
        self.num_bytes = common_bytes + most_windows * bytes_per_window
        """Bytes of memory that this epoch takes in addition to its dataset, its windows included."""

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; raises a ValueError if one is outside."""
        return bins_at(self, positions)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> UnfilledBins:
        """Finds the bins at the given positions; see `FindingSource.find`."""
        if (positions[1:] >= positions[:-1]).all():
            return self._find_ascending(positions, outline, first_template)
        order = np.argsort(positions, kind="stable")
        ascending = Outline.of(len(positions))
        found = self._find_ascending(positions[order], ascending, first_template)
        return reordered(found, ascending, np.argsort(order), outline)  # the inverse: back to the order of `positions`

    def _find_ascending(self, positions: NDArray[np.int64], outline: Outline, first_template: int) -> UnfilledBins:
        """Finds the bins at ascending positions, window by window."""
        return concatenated(
            [
                part.view.find(part.positions, outline.part(part.indices), first_template)
                for part in self._window_parts(positions)
            ]
        )

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions: int64 [N]."""
        wanted_positions = checked_positions(positions, self.num_bins)
        order = np.argsort(wanted_positions, kind="stable")
        costs = np.empty(len(wanted_positions), dtype=np.int64)
        for part in self._window_parts(wanted_positions[order]):
            costs[order[part.indices]] = part.view.costs(part.positions, cost_linear)
        return costs

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch."""
        return located(self._plan, self._pool, self._first_tokens, ids, self._locate_entries)

    def _locate_entries(
        self, length_index: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where entries of the pool are; see `EpochView.locate_entries`."""
        windows = np.empty(len(entries), dtype=np.int64)
        plan = self._plan
        _find_windows(plan.tables, plan.repeat_tables, self._shifts, self.num_windows, length_index, entries, windows)
        positions, index_in_bin = np.full((2, len(entries)), -1, dtype=np.int64)
        for window in np.unique(windows[windows >= 0]).tolist():
            is_inside = windows == window
            positions_inside, index_in_bin[is_inside] = self._view(window).locate_entries(
                length_index[is_inside], entries[is_inside]
            )
            positions[is_inside] = self.window_starts[self._order.inverse(window)] + positions_inside
        return positions, index_in_bin

    def _window_parts(self, ascending: NDArray[np.int64]) -> Iterator[_WindowPart]:
        """Yields the part of ascending positions in each window that has some; without positions, one empty part."""
        first = last = 0
        if len(ascending):
            first, last = (np.searchsorted(self.window_starts, ascending[[0, -1]], side="right") - 1).tolist()
        edges = [0, *np.searchsorted(ascending, self.window_starts[first + 1 : last + 1]).tolist(), len(ascending)]
        for ordinal, (begin, end) in enumerate(pairwise(edges), first):  # the window that comes first is 0
            if begin < end or first == last:
                view = self._view(int(self._window_at[ordinal]))
                yield _WindowPart(view, slice(begin, end), ascending[begin:end] - self.window_starts[ordinal])

    def _view(self, window: int) -> EpochView:
        """Returns a window's epoch, and remembers it for all threads."""

        def make() -> EpochView:
            return EpochView(
                self._plan_of(window),
                self._pool,
                seed=self.seed,
                epoch=self.epoch,
                first_tokens=self._first_tokens,
                window=window,
            )

        with self._lock:
            return self._views.get(window, make)

    def _plan_of(self, window: int) -> PlanIndex:
        """Returns a window's plan: the same templates with the window's multiplicities, over its part of the pool."""
        plan = self._plan
        first_bin, draws = np.empty_like(plan.first_bin), np.empty_like(plan.repeat_first_draw)
        counts, pool_starts = np.empty_like(plan.counts), np.empty_like(plan.pool_starts)
        _lay_out(plan.tables, self._shifts, self.num_windows, window, first_bin, draws, counts, pool_starts)
        shift = max(0, int(first_bin[-1]).bit_length() - _LOOKUP_BITS)
        lookup = np.empty((int(first_bin[-1]) >> shift) + 2, dtype=plan.lookup.dtype)
        _fill_lookup(first_bin, shift, lookup)
        return replace(
            plan,
            first_bin=first_bin,
            repeat_first_draw=draws,
            counts=counts,
            pool_starts=pool_starts,
            lookup=lookup,
            lookup_shift=shift,
        )


@inlined
def _first_copy(multiplicity: Any, shift: Any, num_windows: Any, window: Any) -> Any:
    """Returns the number of a template's copies in the windows before `window`."""
    return (window * multiplicity + shift) // num_windows


@kernel_or()
def _fill_shifts(key: Any, num_windows: Any, shifts: Any) -> None:
    """Draws each template's shift, in [0, num_windows): writes `shifts`, int64 [T]."""
    for template in range(len(shifts)):
        random_bits = mix(key ^ mix(np.uint64(template) + GOLDEN))
        shifts[template] = np.int64(((random_bits >> _32) * np.uint64(num_windows)) >> _32)


@kernel_or()
def _count_bins(first_bin: Any, shifts: Any, num_bins: Any) -> None:
    """Counts the bins of every window: writes `num_bins`, int64 [W].

    Every window has M_t // W copies of template t. The M_t % W copies that are left are in different windows, one in
    each, so there are at most as many steps as bins.
    """
    num_windows = len(num_bins)
    num_in_every_window = 0
    for window in range(num_windows):
        num_bins[window] = 0
    for template in range(len(shifts)):
        multiplicity = first_bin[template + 1] - first_bin[template]
        num_in_every_window += multiplicity // num_windows
        left = multiplicity % num_windows
        # The last window w for which fewer than `copy` of the copies that are left are in windows before it.
        for copy in range(1, left + 1):
            num_bins[(copy * num_windows - shifts[template] + left - 1) // left - 1] += 1
    for window in range(num_windows):
        num_bins[window] += num_in_every_window


@kernel_or()
def _lay_out(
    tables: Any,
    shifts: Any,
    num_windows: Any,
    window: Any,
    first_bin_out: Any,
    repeat_first_draw_out: Any,
    counts_out: Any,
    pool_starts_out: Any,
) -> None:
    """Writes the tables of a window's plan that differ from the whole plan's; see `PlanIndex` for each.

    The window's part of a length's pool begins where that of the window before ends.
    """
    for length_index in range(len(counts_out)):
        counts_out[length_index], pool_starts_out[length_index] = 0, tables.pool_starts[length_index]
    first_bin_out[0] = 0
    for template in range(len(shifts)):
        multiplicity = tables.first_bin[template + 1] - tables.first_bin[template]
        first = _first_copy(multiplicity, shifts[template], num_windows, window)
        num = _first_copy(multiplicity, shifts[template], num_windows, window + 1) - first
        first_bin_out[template + 1] = first_bin_out[template] + num
        for repeat in range(tables.first_repeat[template], tables.first_repeat[template + 1]):
            length_index, copies = tables.repeat_length[repeat], tables.repeat_copies[repeat]
            repeat_first_draw_out[repeat] = counts_out[length_index]
            counts_out[length_index] += num * copies
            pool_starts_out[length_index] += first * copies


@kernel_or()
def _fill_lookup(first_bin: Any, shift: Any, lookup_out: Any) -> None:
    """Writes, for every edge e << shift, the last template with first_bin <= the edge, as `PlanIndex.lookup`."""
    template, last = 0, max(len(first_bin) - 2, 0)
    for edge in range(len(lookup_out)):
        while template < last and first_bin[template + 1] <= edge << shift:
            template += 1
        lookup_out[edge] = template


def _find_windows_plainly(
    tables: Any, repeats: Any, shifts: Any, num_windows: Any, length_indices: Any, entries: Any, out: Any
) -> None:
    """Does the same as `_find_windows`, in NumPy."""
    out[:] = -1
    for e in np.flatnonzero(entries >= 0).tolist():
        length_index = length_indices[e]
        own = slice(repeats.first_by_length[length_index], repeats.first_by_length[length_index + 1])
        repeat = repeats.repeats_by_length[own]
        templates, copies = repeats.repeat_template[repeat], tables.repeat_copies[repeat].astype(np.int64)
        multiplicities = np.int64(tables.first_bin[templates + 1]) - tables.first_bin[templates]
        copies_before = partial(plain_form(_first_copy), multiplicities, shifts[templates], num_windows)
        draws_ahead = entries[e] - tables.pool_starts[length_index]
        out[e] = bisect_right(range(1, num_windows), draws_ahead, key=partial(_draws_before, copies_before, copies))


def _draws_before(copies_before: Any, copies: Any, window: int) -> int:
    """Returns the draws of a length in the windows before `window`, over all repeats of the length."""
    return int((copies_before(window) * copies).sum())


@kernel_or(_find_windows_plainly)
def _find_windows(
    tables: Any, repeats: Any, shifts: Any, num_windows: Any, length_indices: Any, entries: Any, out: Any
) -> None:
    """Finds the window of each entry of the pool: writes `out`, int64 [n], with -1 for an entry of -1."""
    for e in range(len(entries)):
        out[e] = -1
        if entries[e] < 0:
            continue
        length_index = length_indices[e]
        draws_ahead = entries[e] - tables.pool_starts[length_index]
        low, high = 0, num_windows - 1
        while low < high:  # the last window whose draws of this length begin at or before the entry
            middle = (low + high + 1) >> 1
            before = 0
            for i in range(repeats.first_by_length[length_index], repeats.first_by_length[length_index + 1]):
                repeat = repeats.repeats_by_length[i]
                template = repeats.repeat_template[repeat]
                multiplicity = tables.first_bin[template + 1] - tables.first_bin[template]
                copies = _first_copy(multiplicity, shifts[template], num_windows, middle)
                before += copies * tables.repeat_copies[repeat]
            if before <= draws_ahead:
                low = middle
            else:
                high = middle - 1
        out[e] = low
