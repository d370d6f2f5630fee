"""The compiled loops over a plan that lead from ids back to positions; `EpochView` runs them without the GIL.

Owns finding ids in the pool, and the positions of the pool's entries. Leaves the way from bins to ids to
`plan_kernels`, whose header says what a plain form is, and the plan's tables to `plan_index`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel_or
from packhorse.epoch.permutation import backward, unpermuted
from packhorse.epoch.plan_kernels import ranges


def _find_entries_plainly(
    tables: Any, pool: Any, wanted: Any, has_pieces: bool, which_out: Any, length_index_out: Any, entry_out: Any
) -> int:
    lows, highs = np.empty((2, len(tables.counts), len(wanted)), np.int64)
    for i, (begin, num) in enumerate(zip(tables.pool_starts.tolist(), tables.counts.tolist(), strict=True)):
        of_length = pool[begin : begin + num]
        lows[i] = begin + np.searchsorted(of_length, wanted, side="left")
        highs[i] = begin + np.searchsorted(of_length, wanted, side="right")
    which, length_index = np.nonzero((highs > lows).T)
    lows, nums = lows[length_index, which], (highs - lows)[length_index, which]
    if not has_pieces:
        which, first = np.unique(which, return_index=True)
        length_index, lows, nums = length_index[first], lows[first], np.ones(len(first), np.int64)
    entries, row = ranges(lows, nums)
    missing = np.setdiff1d(np.arange(len(wanted)), which)
    nowhere = np.full(len(missing), -1)
    which = np.concatenate((which[row], missing))
    order = np.argsort(which, kind="stable")
    columns = (which, np.concatenate((length_index[row], nowhere)), np.concatenate((entries, nowhere)))
    for out, values in zip((which_out, length_index_out, entry_out), columns, strict=True):
        out[: len(order)] = values[order][: len(out)]
    return len(order)


@kernel_or(_find_entries_plainly)
def find_entries(
    tables: Any, pool: Any, wanted: Any, has_pieces: bool, which_out: Any, length_index_out: Any, entry_out: Any
) -> int:
    """Finds ids in the pool, by bisection among the ids of each length.

    Every wanted id has a row, or several if the pool has pieces, in the order of `wanted`. A row is (index into
    `wanted`, index into lengths, index into the pool); the last two are -1 if the dataset lacks the id.

    Args:
        tables: `PlanIndex.tables`.
        pool: ids ascending by (length, id).
        wanted: ids: int64 [n].
        has_pieces: whether an id may come several times.
        which_out: receives the rows' first numbers: int64 [rows that fit].
        length_index_out: receives their second numbers.
        entry_out: receives their third numbers.

    Returns:
        The number of rows; rows beyond the arrays' size are only counted.
    """
    num_rows = 0
    for w in range(len(wanted)):
        before = num_rows
        for length_index in range(len(tables.counts)):
            low = tables.pool_starts[length_index]
            end = low + tables.counts[length_index]
            high = end
            while low < high:
                middle = (low + high) >> 1
                if np.int64(pool[middle]) < wanted[w]:
                    low = middle + 1
                else:
                    high = middle
            while low < end and np.int64(pool[low]) == wanted[w]:
                if num_rows < len(which_out):
                    which_out[num_rows] = w
                    length_index_out[num_rows] = length_index
                    entry_out[num_rows] = low
                num_rows += 1
                low += 1
                if not has_pieces:
                    break
            if num_rows > before and not has_pieces:
                break
        if num_rows == before:
            if num_rows < len(which_out):
                which_out[num_rows] = w
                length_index_out[num_rows] = -1
                entry_out[num_rows] = -1
            num_rows += 1
    return num_rows


def _locate_entries_plainly(
    tables: Any,
    repeats: Any,
    pool_rows: Any,
    bin_row: Any,
    length_indices: Any,
    entries: Any,
    position_out: Any,
    index_in_bin_out: Any,
) -> None:
    (found,) = np.nonzero(entries >= 0)
    lengths = length_indices[found]
    draws = unpermuted(pool_rows[lengths], (entries[found] - tables.pool_starts[lengths]).astype(np.uint64))
    which = np.empty(len(found), np.int64)
    for length_index in np.unique(lengths).tolist():
        ours = np.flatnonzero(lengths == length_index)
        own = slice(repeats.first_by_length[length_index], repeats.first_by_length[length_index + 1])
        of_length = repeats.repeats_by_length[own]
        firsts = tables.repeat_first_draw[of_length]
        which[ours] = of_length[np.searchsorted(firsts, draws[ours].astype(np.int64), side="right") - 1]
    templates, copies = repeats.repeat_template[which], tables.repeat_copies[which].astype(np.int64)
    ahead = draws.astype(np.int64) - tables.repeat_first_draw[which]
    before = np.concatenate(([0], np.cumsum(tables.repeat_copies, dtype=np.int64)))
    index_in_bin_out[found] = ahead % copies + before[which] - before[tables.first_repeat[templates]]
    bins = tables.first_bin[templates] + ahead // copies
    position_out[found] = unpermuted(bin_row, bins.astype(np.uint64)).astype(np.int64)


@kernel_or(_locate_entries_plainly)
def locate_entries(
    tables: Any,
    repeats: Any,
    pool_rows: Any,
    bin_row: Any,
    length_indices: Any,
    entries: Any,
    position_out: Any,
    index_in_bin_out: Any,
) -> None:
    """Finds the position, and the index in its bin, of entries of the pool; an entry of -1 is left out.

    From an entry follows its draw, by the inverse permutation; from the draw its repeat, by bisection among the repeats
    of its length; from these its bin; and from the bin its position.

    Args:
        tables: `PlanIndex.tables`.
        repeats: `PlanIndex.repeat_tables`.
        pool_rows: a parameter row for each length: uint64 [D, ROW_WIDTH].
        bin_row: the parameter row of the bins.
        length_indices: index into lengths of each entry: int64 [n].
        entries: indices into the pool: int64 [n].
        position_out: receives positions: int64 [n].
        index_in_bin_out: receives indices in the bins: int64 [n].
    """
    for e in range(len(entries)):
        if entries[e] < 0:
            continue
        length_index = length_indices[e]
        row = pool_rows[length_index]
        draw = np.int64(backward(row, np.uint64(entries[e] - tables.pool_starts[length_index])))
        first = repeats.first_by_length[length_index]
        last = repeats.first_by_length[length_index + 1] - 1
        while first < last:
            middle = (first + last + 1) >> 1
            if tables.repeat_first_draw[repeats.repeats_by_length[middle]] <= draw:
                first = middle
            else:
                last = middle - 1
        repeat = repeats.repeats_by_length[first]
        template = repeats.repeat_template[repeat]
        ahead = draw - tables.repeat_first_draw[repeat]
        index_in_bin = ahead % tables.repeat_copies[repeat]
        for earlier in range(tables.first_repeat[template], repeat):
            index_in_bin += tables.repeat_copies[earlier]
        index_in_bin_out[e] = index_in_bin
        position_out[e] = np.int64(
            backward(bin_row, np.uint64(tables.first_bin[template] + ahead // tables.repeat_copies[repeat]))
        )
