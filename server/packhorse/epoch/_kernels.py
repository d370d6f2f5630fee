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

    Draws are made, permuted and fetched in blocks that stay in the first cache.
    """
    scratch = pool_scratch()
    rows, draws = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.uint64)
    slot, num = 0, 0
    for p in range(len(templates)):
        for run in range(tables.first_run[templates[p]], tables.first_run[templates[p] + 1]):
            length_index, copies_left = tables.run_length[run], tables.run_copies[run]
            draw = tables.run_first_draw[run] + copies[p] * copies_left
            while copies_left:
                taken = min(copies_left, BLOCK - num)
                for i in range(taken):
                    rows[num + i] = length_index
                    draws[num + i] = np.uint64(draw + i)
                    lengths_out[slot + num + i] = tables.lengths[length_index]
                num, draw, copies_left = num + taken, draw + taken, copies_left - taken
                if num == BLOCK:
                    _fetch(scratch, pool_rows, rows, draws, pool, first_tokens, slot, num, ids_out, first_tokens_out)
                    slot, num = slot + num, 0
    _fetch(scratch, pool_rows, rows, draws, pool, first_tokens, slot, num, ids_out, first_tokens_out)


@numba.njit(nogil=True, cache=True)
def _fetch(
    scratch: Any,
    pool_rows: Any,
    rows: Any,
    draws: Any,
    pool: Any,
    first_tokens: Any,
    slot: Any,
    num: Any,
    ids_out: Any,
    first_tokens_out: Any,
) -> None:
    """Fetches what a block of draws stands for, into the slots from `slot` on."""
    permute_pools(scratch, pool_rows, rows, draws, num)
    for i in range(num):
        ids_out[slot + i] = pool[draws[i]]
    if first_tokens is not None:
        for i in range(num):
            first_tokens_out[slot + i] = first_tokens[draws[i]]
