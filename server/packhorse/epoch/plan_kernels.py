"""The compiled loops over a plan that lead from bins to their ids; `EpochView` runs them without the GIL.

Leaves the plan's tables, which these loops read, to `plan_index`, arrays of two widths to `columns`, permuting draws to
`draws`, and the way back from ids to positions to `locating_kernels`.

A function that `kernel_or` gets as its argument, such as `_find_bins_plainly`, is the kernel's plain form: it does the
same in NumPy until the kernel is compiled.
"""

from typing import Any

import numpy as np

from packhorse.compiling import inlined, kernel_or, kernel_part
from packhorse.epoch.columns import fetch_column, prefetch_column
from packhorse.epoch.draws import BLOCK, no_draws, permute_pools, set_draws
from packhorse.epoch.permutation import OFFSET, ROW_WIDTH, SIZE, permuted
from packhorse.epoch.vector_instructions import LANES, fill_lanes

_LANES, _LAST_LANES = np.uint64(LANES), np.uint64(BLOCK - LANES)
_PREFETCHED_AT_ONCE = np.uint64(4)
"""Entries of the block before that are prefetched with each write of draws. More than the draws of a write on average,
so all are prefetched before the block is full; and a divisor of BLOCK."""

_LINE_BYTES = 64  # of a cache line
_ROWS_IN_LINE = _LINE_BYTES // (8 * ROW_WIDTH)  # parameter rows, of 8 bytes a column
_LOADING_PAYS = 32
"""Tables are read ahead by `_load` if they have fewer than this many entries for each bin."""


@inlined
def _template_of(tables: Any, bin_number: Any) -> Any:
    """Returns the template of a bin, by bisection: the last one with first_bin <= bin_number."""
    low = tables.lookup[bin_number >> tables.lookup_shift]
    high = tables.lookup[(bin_number >> tables.lookup_shift) + 1]
    while low < high:
        middle = (low + high + 1) >> 1
        if tables.first_bin[middle] <= bin_number:
            low = middle
        else:
            high = middle - 1
    return low


def _find_costs_plainly(tables: Any, template_costs: Any, costs_out: Any) -> None:
    costs_out[:] = template_costs[_templates_of(tables, costs_out)]


def _templates_of(tables: Any, bin_numbers: Any) -> Any:
    """Returns the template of each bin in NumPy: int64 [N]; as `_template_of`."""
    return np.searchsorted(tables.first_bin[:-1], bin_numbers, side="right") - 1


@kernel_or(_find_costs_plainly)
def find_costs(tables: Any, template_costs: Any, costs_out: Any) -> None:
    """Replaces the numbers of bins in the plan, in `costs_out`, by their costs: int64 [N]."""
    for p in range(len(costs_out)):
        costs_out[p] = template_costs[_template_of(tables, costs_out[p])]


def _find_bins_plainly(
    tables: Any, first_template: Any, template_out: Any, copy_out: Any, sizes_out: Any, numbers_out: Any
) -> Any:
    templates = _templates_of(tables, copy_out)
    template_out[:] = templates
    copy_out -= tables.first_bin[templates]
    sizes_out[:] = tables.template_size[templates]
    numbers_out[:] = templates + first_template
    return 0


@kernel_or(_find_bins_plainly)
def find_bins(
    tables: Any, first_template: Any, template_out: Any, copy_out: Any, sizes_out: Any, numbers_out: Any
) -> Any:
    """Finds each bin's template, which copy of it the bin is, and its number of sequences.

    Args:
        tables: `PlanIndex.bin_tables`.
        first_template: number to add to a template's for `numbers_out`.
        template_out: receives each bin's template: int64 [N].
        copy_out: numbers of the bins in the plan; receives the copy, from 0: int64 [N].
        sizes_out: receives each bin's number of sequences: int64 [N].
        numbers_out: receives first_template + the bin's template: int64 [N].

    Returns:
        A number without meaning, see `_load`.
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
    """Reads a table's cache lines in order, so that they are in the cache; returns a sum of what it read.

    The plans of a mixture push each other's tables out of the cache. Reading a table in the order of the bins would
    wait for each line, while the processor prefetches consecutive lines. The compiler would remove this loop if nobody
    got the sum.
    """
    total = np.int64(0)
    for i in range(0, len(table), _LINE_BYTES // table.itemsize):
        total += table[i]
    return total


def _draw_ids_plainly(
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
    # bins → repeats → draws → entries of the pool
    begins, ends = (tables.first_repeat[templates + at].astype(np.int64) for at in (0, 1))
    repeats, which = ranges(begins, ends - begins)
    num = tables.repeat_copies[repeats].astype(np.int64)
    firsts = tables.repeat_first_draw[repeats].astype(np.int64) + copies[which] * num
    draws, which = ranges(firsts, num)
    rows = pool_rows[tables.repeat_length[repeats][which]]
    entries = permuted(rows, draws.astype(np.uint64)) + rows[:, OFFSET]
    lengths = tables.lengths[tables.repeat_length[repeats]][which]
    drawn = slice(begin, begin + len(draws))
    lengths_out[drawn] = lengths
    for column, out in ((pool, ids_out), (first_tokens, first_tokens_out)):
        for own in (column.narrow, column.wide):
            if len(own):
                (out.narrow if len(out.narrow) else out.wide)[drawn] = own[entries]
    return int(lengths.sum(dtype=np.int64)), 0


def ranges(firsts: Any, sizes: Any) -> Any:
    """Returns the ranges firsts[i], firsts[i] + 1, … of sizes[i] numbers each, end to end; and the i of each number."""
    which = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(which)) + (firsts - np.cumsum(sizes) + sizes)[which], which


@kernel_or(_draw_ids_plainly)
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
    """Writes the ids and lengths of the bins that `find_bins` found, and their first tokens if the pool has pieces.

    Draws are made and permuted in blocks that stay in the first-level cache. A block's entries lie all over the pool,
    so they are prefetched while the next block's draws are made, and read after that.

    Args:
        tables: `PlanIndex.draw_tables`.
        pool_rows: a parameter row for each length: uint64 [D, ROW_WIDTH].
        pool: ids of the pool, a `Column`.
        first_tokens: first tokens of the pool's entries, a `Column`; empty if there are no pieces.
        words: an array of the dtype of `Draws.words`, as `no_draws` takes it.
        templates: template of each bin: int64 [N].
        copies: which copy of its template each bin is: int64 [N].
        begin: index in the outputs from which bins are written, one after another.
        ids_out: receives ids, a `Column`.
        lengths_out: receives lengths in tokens: int32.
        first_tokens_out: receives first tokens, a `Column`.

    Returns:
        The number of tokens of all bins, and a number without meaning, see `_load`.
    """
    loaded = 0
    if _LOADING_PAYS * len(templates) > len(tables.repeat_length):
        loaded += _load(tables.first_repeat) + _load(tables.repeat_length) + _load(tables.repeat_copies)
        loaded += _load(tables.repeat_first_draw) + _load(tables.lengths)
        for row in range(0, len(pool_rows), _ROWS_IN_LINE):
            loaded += np.int64(pool_rows[row, SIZE])
    draws, lengths = no_draws(words), np.empty(BLOCK, np.int32)
    entries = np.empty(BLOCK, words.dtype)  # pool entries of the block before, which are prefetched
    for s in range(BLOCK):  # prefetching reads up to three entries beyond those of a block: never undefined ones
        entries[s] = 0
    num = num_before = num_prefetched = num_tokens = np.uint64(0)  # unsigned: no index is checked for being below 0
    done = np.uint64(begin)  # index in the outputs up to which bins are written
    for p in range(len(templates)):
        for repeat in range(tables.first_repeat[templates[p]], tables.first_repeat[templates[p] + 1]):
            length_index, copies_left = np.uint64(tables.repeat_length[repeat]), np.uint64(tables.repeat_copies[repeat])
            draw = np.uint64(tables.repeat_first_draw[repeat] + copies[p] * tables.repeat_copies[repeat])
            length = tables.lengths[length_index]
            num_tokens += np.uint64(length) * copies_left
            while copies_left:
                if num > _LAST_LANES:  # the block is full: write the one before, and permute this one
                    fetch_column(entries, num_before, done, pool, ids_out)
                    fetch_column(entries, num_before, done, first_tokens, first_tokens_out)
                    done += num_before
                    permute_pools(draws, num, entries)
                    _lay_out(lengths, num, done, lengths_out)
                    num_before, num, num_prefetched = num, np.uint64(0), np.uint64(0)
                set_draws(draws, num, pool_rows, length_index, draw)
                fill_lanes(lengths, num, length)
                if num_prefetched < num_before:
                    prefetch_column(entries, num_prefetched, _PREFETCHED_AT_ONCE, pool)
                    prefetch_column(entries, num_prefetched, _PREFETCHED_AT_ONCE, first_tokens)
                    num_prefetched += _PREFETCHED_AT_ONCE
                taken = min(copies_left, _LANES)
                num, draw, copies_left = num + taken, draw + taken, copies_left - taken
    fetch_column(entries, num_before, done, pool, ids_out)
    fetch_column(entries, num_before, done, first_tokens, first_tokens_out)
    done += num_before
    permute_pools(draws, num, entries)
    _lay_out(lengths, num, done, lengths_out)
    fetch_column(entries, num, done, pool, ids_out)
    fetch_column(entries, num, done, first_tokens, first_tokens_out)
    return np.int64(num_tokens), loaded


@kernel_part
def _lay_out(lengths: Any, num: Any, begin: Any, lengths_out: Any) -> None:
    """Copies the first `num` lengths of a block into the output, from `begin` on."""
    for i in range(num):
        lengths_out[begin + i] = lengths[i]
