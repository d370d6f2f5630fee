"""The compiled loops of locality windows: how many bins each has, the plan of one, and the way back.

Owns the arithmetic of times, in integers. Copy i of template t comes at the time (i + u_t) / M_t of the epoch, and
window w of W holds the copies with time in [w / W, (w + 1) / W). The first of them is the least i with
i·W >= w·M_t - u_t·W. Of u_t only floor(u_t·W) matters, so with a keyed shift in [0, W) for W - 1 - floor(u_t·W) it is
(w·M_t + shift) // W, exactly.
"""

from typing import Any

import numba
import numpy as np

from packhorse.compiling import kernel
from packhorse.epoch.kernels.permutation import GOLDEN, mix

_32 = np.uint64(32)


@numba.njit(inline="always")
def _first_copy(multiplicity: Any, shift: Any, num_windows: Any, window: Any) -> Any:
    """Copies of a template that the windows before `window` hold."""
    return (window * multiplicity + shift) // num_windows


@kernel
def fill_shifts(key: Any, num_windows: Any, shifts: Any) -> None:
    """Draws each template's shift: int64 [T], in [0, num_windows)."""
    for template in range(len(shifts)):
        word = mix(key ^ mix(np.uint64(template) + GOLDEN))
        shifts[template] = np.int64(((word >> _32) * np.uint64(num_windows)) >> _32)


@kernel
def count_bins(first_bin: Any, shifts: Any, num_bins: Any) -> None:
    """Counts the bins of every window into num_bins, int64 [W].

    Every window has M_t // W copies of a template. Of the copies left over, a template has at most one in a window, so
    each is put where it comes, which takes no longer than there are bins.
    """
    num_windows = len(num_bins)
    everywhere = 0
    for window in range(num_windows):
        num_bins[window] = 0
    for template in range(len(shifts)):
        multiplicity = first_bin[template + 1] - first_bin[template]
        everywhere += multiplicity // num_windows
        left = multiplicity % num_windows
        for copy in range(1, left + 1):
            num_bins[(copy * num_windows - shifts[template] + left - 1) // left - 1] += 1
    for window in range(num_windows):
        num_bins[window] += everywhere


@kernel
def lay_out(
    tables: Any,
    shifts: Any,
    num_windows: Any,
    window: Any,
    first_bin_out: Any,
    run_first_draw_out: Any,
    counts_out: Any,
    pool_starts_out: Any,
) -> None:
    """Writes those tables of a window's plan that differ from the whole plan's.

    The window's draws of a length begin where those of the windows before it end.
    """
    for length_index in range(len(counts_out)):
        counts_out[length_index], pool_starts_out[length_index] = 0, tables.pool_starts[length_index]
    first_bin_out[0] = 0
    for template in range(len(shifts)):
        multiplicity = tables.first_bin[template + 1] - tables.first_bin[template]
        first = _first_copy(multiplicity, shifts[template], num_windows, window)
        num = _first_copy(multiplicity, shifts[template], num_windows, window + 1) - first
        first_bin_out[template + 1] = first_bin_out[template] + num
        for run in range(tables.first_run[template], tables.first_run[template + 1]):
            length_index, copies = tables.run_length[run], tables.run_copies[run]
            run_first_draw_out[run] = counts_out[length_index]
            counts_out[length_index] += num * copies
            pool_starts_out[length_index] += first * copies


@kernel
def fill_lookup(first_bin: Any, shift: Any, lookup_out: Any) -> None:
    """Writes for every edge e << shift the last template with first_bin <= the edge."""
    template, last = 0, max(len(first_bin) - 2, 0)
    for edge in range(len(lookup_out)):
        while template < last and first_bin[template + 1] <= edge << shift:
            template += 1
        lookup_out[edge] = template


@kernel
def find_windows(
    tables: Any, runs: Any, shifts: Any, num_windows: Any, length_indices: Any, entries: Any, out: Any
) -> None:
    """Finds the window that holds each of the pool's entries, -1 for an entry of -1: int64 [n]."""
    for e in range(len(entries)):
        out[e] = -1
        if entries[e] < 0:
            continue
        length_index = length_indices[e]
        ahead = entries[e] - tables.pool_starts[length_index]
        low, high = 0, num_windows - 1
        while low < high:  # the last window whose draws of this length begin at or before the entry
            middle = (low + high + 1) >> 1
            before = 0
            for i in range(runs.first_by_length[length_index], runs.first_by_length[length_index + 1]):
                run = runs.runs_by_length[i]
                template = runs.run_template[run]
                multiplicity = tables.first_bin[template + 1] - tables.first_bin[template]
                copies = _first_copy(multiplicity, shifts[template], num_windows, middle)
                before += copies * tables.run_copies[run]
            if before <= ahead:
                low = middle
            else:
                high = middle - 1
        out[e] = low
