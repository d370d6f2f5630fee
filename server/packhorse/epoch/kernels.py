"""The compiled loops of an epoch: positions → bins → ids.

Owns what runs without the GIL on the serving path; every array and its meaning is documented in `plan_index`, and the
way back is in `lookup`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.epoch.permutation import permute_pools, permute_positions

_BUCKETS = 1024


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

    Draws are brought into the order of their lengths first, by a counting sort over at most _BUCKETS groups of
    neighbouring lengths. Fetches then walk through the pool from its beginning to its end rather than jump about in
    all of it, which matters in a large pool, whose pages the processor's tables do not hold; and permutations find
    their parameters in cache. pool_of (int32) and pool_index (uint64), one entry a sequence, are
    scratch.
    """
    shift = 0
    while (len(lengths) - 1) >> shift >= _BUCKETS:
        shift += 1
    place = np.zeros(_BUCKETS, dtype=np.int64)
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            place[run_length[run] >> shift] += run_copies[run]
    begin = 0
    for bucket in range(_BUCKETS):
        size = place[bucket]
        place[bucket] = begin
        begin += size

    slot_of = np.empty(len(ids_out), dtype=np.uint32)
    slot = 0
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            length_index, num = run_length[run], run_copies[run]
            first = run_first_draw[run] + copies[p] * num
            begin = place[length_index >> shift]
            place[length_index >> shift] = begin + num
            for i in range(num):
                slot_of[begin + i] = slot + i
                pool_of[begin + i] = length_index
                pool_index[begin + i] = np.uint64(first + i)
                lengths_out[slot + i] = lengths[length_index]
            slot += num

    permute_pools(pool_rows, pool_of, pool_index)
    for i in range(slot):
        ids_out[slot_of[i]] = pool[pool_index[i]]
