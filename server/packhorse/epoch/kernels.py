"""The compiled loops of an epoch: positions → bins → ids.

Owns what runs without the GIL on the serving path; every array and its meaning is documented in `plan_index`, and the
way back is in `lookup`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.epoch.permutation import BLOCK, permute_pools, permute_positions


@numba.njit(nogil=True, cache=True)
def find_bins(
    positions: Any,
    bin_row: Any,
    first_bin: Any,
    lookup: Any,
    lookup_shift: int,
    template_size: Any,
    template_out: Any,
    copy_out: Any,
    bin_ends_out: Any,
) -> None:
    """Finds each position's template, which copy of it the bin is, and where the bin ends among the ids."""
    permute_positions(bin_row, positions, copy_out)
    end = 0
    for p in range(len(positions)):
        bin_number = copy_out[p]
        low = lookup[bin_number >> lookup_shift]
        high = lookup[(bin_number >> lookup_shift) + 1]
        while low < high:  # the last template with first_bin <= bin_number
            middle = (low + high + 1) >> 1
            if first_bin[middle] <= bin_number:
                low = middle
            else:
                high = middle - 1
        template_out[p] = low
        copy_out[p] = bin_number - first_bin[low]
        end += template_size[low]
        bin_ends_out[p] = end


@numba.njit(nogil=True, cache=True)
def draw_ids(
    templates: Any,
    copies: Any,
    first_run: Any,
    run_length: Any,
    run_copies: Any,
    run_first_draw: Any,
    lengths: Any,
    pool_rows: Any,
    pool: Any,
    pool_of: Any,
    pool_index: Any,
    ids_out: Any,
    lengths_out: Any,
) -> None:
    """Fills in the ids and lengths of the bins that `find_bins` found.

    Works in stages of about BLOCK sequences, each in three sweeps (draws, permutations, fetches): a sweep is a plain
    loop whose iterations overlap, the fetches with their cache misses above all. pool_of (int32) and pool_index
    (uint64), one entry a sequence, are scratch of which only a stage's part at the beginning is used.
    """
    done = num_staged = 0
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            first = run_first_draw[run] + copies[p] * run_copies[run]
            for draw in range(first, first + run_copies[run]):
                pool_of[num_staged] = run_length[run]
                pool_index[num_staged] = np.uint64(draw)
                num_staged += 1
        if num_staged >= BLOCK or p == len(templates) - 1:
            permute_pools(pool_rows, pool_of[:num_staged], pool_index[:num_staged])
            for s in range(num_staged):
                ids_out[done + s] = pool[pool_index[s]]
            for s in range(num_staged):
                lengths_out[done + s] = lengths[pool_of[s]]
            done += num_staged
            num_staged = 0
