"""The compiled loops of an epoch: positions → bins → ids.

Owns what runs without the GIL on the serving path. The tables of a plan are documented in `plan_index`; the way back is
in `_lookup`.
"""

from typing import Any

import numba
import numpy as np

from packhorse.compiling import kernel, kernel_part
from packhorse.epoch.kernels.columns import ask_column, fetch_column
from packhorse.epoch.kernels.draws import BLOCK, no_draws, permute_pools, set_draws
from packhorse.epoch.kernels.instructions import LANES, fill_lanes
from packhorse.epoch.kernels.permutation import ROW_WIDTH, SIZE

_LANES, _LAST_LANES = np.uint64(LANES), np.uint64(BLOCK - LANES)
_ASKED_AT_ONCE = np.uint64(4)
"""Entries asked for with each run of a block: more than its draws, on average, and a divisor of BLOCK."""

_LINE_BYTES = 64
"""Of a cache."""

_ROWS_IN_LINE = _LINE_BYTES // (8 * ROW_WIDTH)

_LOADING_PAYS = 32
"""From so many times fewer bins than a table is long, loading its tables takes longer than waiting for what is read."""


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


@kernel
def find_costs(tables: Any, template_costs: Any, costs_out: Any) -> None:
    """Looks up what each bin costs: its number in the plan is in `costs_out`, which gets the cost."""
    for p in range(len(costs_out)):
        costs_out[p] = template_costs[_template_of(tables, costs_out[p])]


@kernel
def find_bins(
    tables: Any, first_template: Any, template_out: Any, copy_out: Any, sizes_out: Any, numbers_out: Any
) -> Any:
    """Finds each bin's template, which copy of it the bin is, and how many sequences it has.

    A bin's number in the plan is in `copy_out`, which gets the copy. Templates' numbers begin at `first_template`.
    Returns a number without meaning, see `_load`.
    """
    loaded = 0
    if _LOADING_PAYS * len(copy_out) > len(tables.lookup):
        loaded += _load(tables.lookup) + _load(tables.first_bin) + _load(tables.template_size)
    for p in range(len(copy_out)):
        bin_number = copy_out[p]
        template = _template_of(tables, bin_number)
        template_out[p] = template
        copy_out[p] = bin_number - tables.first_bin[template]
        sizes_out[p] = tables.template_size[template]
        numbers_out[p] = template + first_template
    return loaded


@kernel_part
def _load(table: Any) -> Any:
    """Reads a table's lines one after the other, and returns what they add up to, or the compiler would leave it out.

    Plans that take turns push each other's tables out of the cache. Reading them in the order of the bins waits for
    each line by itself, while lines in a row come ahead of being read.
    """
    total = np.int64(0)
    for i in range(0, len(table), _LINE_BYTES // table.itemsize):
        total += table[i]
    return total


@kernel
def draw_ids(
    tables: Any,
    pool_rows: Any,
    pool: Any,
    first_tokens: Any,
    words: Any,
    templates: Any,
    copies: Any,
    begin: Any,
    ids_out: Any,
    lengths_out: Any,
    first_tokens_out: Any,
) -> Any:
    """Fills in the ids and lengths of the bins that `find_bins` found, and first_tokens where the pool holds pieces.

    Draws are made and permuted in blocks that stay in the first cache. While the next block's are made, memory is asked
    for this block's entries, which lie all over the pool; so they are at hand when they are fetched. Bins are written
    one after the other, the first one where `begin` says. `words` is as `no_draws` takes it; `pool` and `first_tokens`,
    and what they are fetched to, are `Column`s. Returns how many tokens
    the bins have, int64, and a number without meaning, see `_load`.
    """
    loaded = 0
    if _LOADING_PAYS * len(templates) > len(tables.run_length):
        loaded += _load(tables.first_run) + _load(tables.run_length) + _load(tables.run_copies)
        loaded += _load(tables.run_first_draw) + _load(tables.lengths)
        for row in range(0, len(pool_rows), _ROWS_IN_LINE):
            loaded += np.int64(pool_rows[row, SIZE])
    draws, lengths = no_draws(words), np.empty(BLOCK, np.int32)
    entries = np.zeros(BLOCK, words.dtype)  # of the block before, whose memory is asked for
    num = num_asked = first = num_tokens = np.uint64(0)  # unsigned: no index is checked for being below 0
    done = np.uint64(begin)
    for p in range(len(templates)):
        for run in range(tables.first_run[templates[p]], tables.first_run[templates[p] + 1]):
            length_index, copies_left = np.uint64(tables.run_length[run]), np.uint64(tables.run_copies[run])
            draw = np.uint64(tables.run_first_draw[run] + copies[p] * tables.run_copies[run])
            length = tables.lengths[length_index]
            num_tokens += np.uint64(length) * copies_left
            while copies_left:
                if num > _LAST_LANES:
                    fetch_column(entries, num_asked, done, pool, ids_out)
                    fetch_column(entries, num_asked, done, first_tokens, first_tokens_out)
                    done += num_asked
                    permute_pools(draws, num, entries)
                    _lay_out(lengths, num, done, lengths_out)
                    num_asked, num, first = num, np.uint64(0), np.uint64(0)
                set_draws(draws, num, pool_rows, length_index, draw)
                fill_lanes(lengths, num, length)
                if first < num_asked:
                    ask_column(entries, first, _ASKED_AT_ONCE, pool)
                    ask_column(entries, first, _ASKED_AT_ONCE, first_tokens)
                    first += _ASKED_AT_ONCE
                taken = min(copies_left, _LANES)
                num, draw, copies_left = num + taken, draw + taken, copies_left - taken
    fetch_column(entries, num_asked, done, pool, ids_out)
    fetch_column(entries, num_asked, done, first_tokens, first_tokens_out)
    done += num_asked
    permute_pools(draws, num, entries)
    _lay_out(lengths, num, done, lengths_out)
    fetch_column(entries, num, done, pool, ids_out)
    fetch_column(entries, num, done, first_tokens, first_tokens_out)
    return np.int64(num_tokens), loaded


@kernel_part
def _lay_out(lengths: Any, num: Any, begin: Any, lengths_out: Any) -> None:
    """Copies the first lengths of a block to where they begin in the output."""
    for i in range(num):
        lengths_out[begin + i] = lengths[i]
