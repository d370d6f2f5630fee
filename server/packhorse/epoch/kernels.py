"""The compiled loops of an epoch: positions → bins → ids, and ids → positions.

Owns what runs without the GIL on the serving path; every array and its meaning is documented in `plan_index`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.epoch.permutation import backward, forward, permute_pools


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
    end = 0
    for p in range(len(positions)):
        bin_number = np.int64(forward(bin_row, np.uint64(positions[p])))
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

    Works in three sweeps (draws, permutations, fetches): each is a plain loop whose iterations overlap, the fetches
    with their cache misses above all. pool_of (int32) and pool_index (uint64), one entry a sequence, are scratch.
    """
    slot = 0
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            length_index = run_length[run]
            length = lengths[length_index]
            first = run_first_draw[run] + copies[p] * run_copies[run]
            for draw in range(first, first + run_copies[run]):
                pool_of[slot] = length_index
                pool_index[slot] = np.uint64(draw)
                lengths_out[slot] = length
                slot += 1
    permute_pools(pool_rows, pool_of, pool_index)
    for s in range(slot):
        ids_out[s] = pool[pool_index[s]]


@numba.njit(nogil=True, cache=True)
def find_ids(
    wanted: Any,
    pool: Any,
    pool_starts: Any,
    counts: Any,
    pool_rows: Any,
    by_length_start: Any,
    by_length_run: Any,
    run_template: Any,
    run_copies: Any,
    run_first_draw: Any,
    first_run: Any,
    first_bin: Any,
    bin_row: Any,
    length_index_out: Any,
    position_out: Any,
    index_in_bin_out: Any,
) -> None:
    """Finds where ids stand in the epoch; length_index_out is -1 for an id that the dataset lacks.

    by_length_run lists the runs of each length in template order, so that a draw's run is found by bisection.
    """
    for w in range(len(wanted)):
        length_index_out[w] = -1
        for length_index in range(len(counts)):
            low = pool_starts[length_index]
            end = low + counts[length_index]
            high = end
            while low < high:
                middle = (low + high) >> 1
                if np.int64(pool[middle]) < wanted[w]:
                    low = middle + 1
                else:
                    high = middle
            if low == end or np.int64(pool[low]) != wanted[w]:
                continue
            row = pool_rows[length_index]
            draw = np.int64(backward(row, np.uint64(low - pool_starts[length_index])))
            first = by_length_start[length_index]
            last = by_length_start[length_index + 1] - 1
            while first < last:
                middle = (first + last + 1) >> 1
                if run_first_draw[by_length_run[middle]] <= draw:
                    first = middle
                else:
                    last = middle - 1
            run = by_length_run[first]
            template = run_template[run]
            ahead = draw - run_first_draw[run]
            index_in_bin = ahead % run_copies[run]
            for earlier in range(first_run[template], run):
                index_in_bin += run_copies[earlier]
            length_index_out[w] = length_index
            index_in_bin_out[w] = index_in_bin
            position_out[w] = np.int64(backward(bin_row, np.uint64(first_bin[template] + ahead // run_copies[run])))
            break
