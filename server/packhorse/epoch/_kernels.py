"""The compiled loops of an epoch: positions → bins → ids.

Owns what runs without the GIL on the serving path. The tables of a plan are documented in `plan_index`; the way back is
in `lookup`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.epoch.permutation import permute_pools, permute_positions

_BUCKETS = 1024


@numba.njit(inline="always")
def _template_of(tables: Any, bin_number: Any) -> Any:
    """The last template with first_bin <= bin_number."""
    low = tables.lookup[bin_number >> tables.lookup_shift]
    high = tables.lookup[(bin_number >> tables.lookup_shift) + 1]
    while low < high:
        middle = (low + high + 1) >> 1
        if tables.first_bin[middle] <= bin_number:
            low = middle
        else:
            high = middle - 1
    return low


@numba.njit(nogil=True, cache=True)
def find_costs(tables: Any, bin_row: Any, template_costs: Any, positions: Any, costs_out: Any) -> None:
    """Looks up what each position's bin costs."""
    permute_positions(bin_row, positions, costs_out)
    for p in range(len(positions)):
        costs_out[p] = template_costs[_template_of(tables, costs_out[p])]


@numba.njit(nogil=True, cache=True)
def find_bins(tables: Any, bin_row: Any, positions: Any, template_out: Any, copy_out: Any, bin_ends_out: Any) -> None:
    """Finds each position's template, which copy of it the bin is, and where the bin ends among the ids."""
    permute_positions(bin_row, positions, copy_out)
    end = 0
    for p in range(len(positions)):
        bin_number = copy_out[p]
        template = _template_of(tables, bin_number)
        template_out[p] = template
        copy_out[p] = bin_number - tables.first_bin[template]
        end += tables.template_size[template]
        bin_ends_out[p] = end


@numba.njit(nogil=True, cache=True)
def draw_ids(
    tables: Any,
    pool_rows: Any,
    pool: Any,
    first_tokens: Any,
    templates: Any,
    copies: Any,
    ids_out: Any,
    lengths_out: Any,
    first_tokens_out: Any,
) -> None:
    """Fills in the ids and lengths of the bins that `find_bins` found, and first_tokens where the pool holds pieces.

    Draws are brought into the order of their lengths first, by a counting sort over at most _BUCKETS groups of
    neighbouring lengths. Fetches then walk through the pool from its beginning to its end rather than jump about in
    all of it, which matters in a large pool, whose pages the processor's tables do not hold; and permutations find
    their parameters in cache.
    """
    first_run, run_length, run_copies = tables.first_run, tables.run_length, tables.run_copies
    shift = 0
    while (len(tables.lengths) - 1) >> shift >= _BUCKETS:
        shift += 1
    next_draw = np.zeros(_BUCKETS, dtype=np.int64)
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            next_draw[run_length[run] >> shift] += run_copies[run]
    begin = 0
    for bucket in range(_BUCKETS):
        size = next_draw[bucket]
        next_draw[bucket] = begin
        begin += size

    pool_of = np.empty(len(ids_out), dtype=np.int32)
    entries = np.empty(len(ids_out), dtype=np.uint64)
    slot_of = np.empty(len(ids_out), dtype=np.uint32)
    slot = 0
    for p in range(len(templates)):
        for run in range(first_run[templates[p]], first_run[templates[p] + 1]):
            length_index, num = run_length[run], run_copies[run]
            first = tables.run_first_draw[run] + copies[p] * num
            begin = next_draw[length_index >> shift]
            next_draw[length_index >> shift] = begin + num
            for i in range(num):
                slot_of[begin + i] = slot + i
                pool_of[begin + i] = length_index
                entries[begin + i] = np.uint64(first + i)
                lengths_out[slot + i] = tables.lengths[length_index]
            slot += num

    permute_pools(pool_rows, pool_of, entries)
    for i in range(slot):
        ids_out[slot_of[i]] = pool[entries[i]]
    if first_tokens is not None:
        for i in range(slot):
            first_tokens_out[slot_of[i]] = first_tokens[entries[i]]
