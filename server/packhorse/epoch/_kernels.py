"""The compiled loops of an epoch: positions → bins → ids.

Owns what runs without the GIL on the serving path. The tables of a plan are documented in `plan_index`; the way back is
in `lookup`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.epoch.permutation import BLOCK, permute_pools, permute_positions, pool_scratch

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
def find_bins(tables: Any, bin_row: Any, positions: Any, template_out: Any, copy_out: Any, size_out: Any) -> None:
    """Finds each position's template, which copy of it the bin is, and how many sequences it has."""
    permute_positions(bin_row, positions, copy_out)
    for p in range(len(positions)):
        bin_number = copy_out[p]
        template = _template_of(tables, bin_number)
        template_out[p] = template
        copy_out[p] = bin_number - tables.first_bin[template]
        size_out[p] = tables.template_size[template]


@numba.njit(nogil=True, cache=True)
def draw_ids(
    tables: Any,
    pool_rows: Any,
    pool: Any,
    first_tokens: Any,
    templates: Any,
    copies: Any,
    begins: Any,
    ids_out: Any,
    lengths_out: Any,
    first_tokens_out: Any,
) -> None:
    """Fills in the ids and lengths of the bins that `find_bins` found, and first_tokens where the pool holds pieces.

    Draws are made, permuted and fetched in blocks that stay in the first cache. Bins begin where `begins` says: those
    of a source made of sources lie between those of others.
    """
    scratch = pool_scratch()
    rows, draws, slots = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    num = 0
    for p in range(len(templates)):
        slot = np.uint64(begins[p])  # unsigned, so that no index is checked for being below 0
        for run in range(tables.first_run[templates[p]], tables.first_run[templates[p] + 1]):
            length_index, copies_left = tables.run_length[run], tables.run_copies[run]
            draw = tables.run_first_draw[run] + copies[p] * copies_left
            while copies_left:
                taken = min(copies_left, BLOCK - num)
                for i in range(taken):
                    rows[num + i] = length_index
                    draws[num + i] = np.uint64(draw + i)
                    slots[num + i] = slot
                    lengths_out[slot] = tables.lengths[length_index]
                    slot += np.uint64(1)
                num, draw, copies_left = num + taken, draw + taken, copies_left - taken
                if num == BLOCK:
                    _fetch(scratch, pool_rows, rows, draws, slots, num, pool, first_tokens, ids_out, first_tokens_out)
                    num = 0
    _fetch(scratch, pool_rows, rows, draws, slots, num, pool, first_tokens, ids_out, first_tokens_out)


@numba.njit(nogil=True, cache=True)
def _fetch(
    scratch: Any,
    pool_rows: Any,
    rows: Any,
    draws: Any,
    slots: Any,
    num: Any,
    pool: Any,
    first_tokens: Any,
    ids_out: Any,
    first_tokens_out: Any,
) -> None:
    """Fetches what a block of draws stands for, into its slots."""
    permute_pools(scratch, pool_rows, rows, draws, num)
    for i in range(num):
        ids_out[slots[i]] = pool[draws[i]]
    if first_tokens is not None:
        for i in range(num):
            first_tokens_out[slots[i]] = first_tokens[draws[i]]
