"""The compiled loops over a plan that lead from ids back to positions; `EpochView` runs them without the GIL.

Owns finding ids in the pool, and the positions of the pool's entries. Leaves the way from bins to ids to
`plan_kernels`, whose header says what a plain form is, and the plan's tables to `plan_index`, which says what a
repeat and its copies are. Legend: n ids, D distinct lengths, each with a parameter row of its permutation.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel_or
from packhorse.epoch.permutation import backward, unpermuted
from packhorse.epoch.plan_kernels import ranges


def _find_entries_plainly(
    tables: Any, pool: Any, wanted: Any, has_pieces: bool, which_out: Any, length_index_out: Any, entry_out: Any
) -> int:
    # For each length and each wanted id, the range of its entries in the pool: int64 [D, n] both.
    begins, ends = np.empty((2, len(tables.counts), len(wanted)), np.int64)
    for i, (start, count) in enumerate(zip(tables.pool_starts.tolist(), tables.counts.tolist(), strict=True)):
        ids = pool[start : start + count]
        begins[i] = start + np.searchsorted(ids, wanted, side="left")
        ends[i] = start + np.searchsorted(ids, wanted, side="right")
    # The ranges that are not empty, one after another.
    which, length_index = np.nonzero((ends > begins).T)  # transposed, so by wanted id first
    begins, sizes = begins[length_index, which], (ends - begins)[length_index, which]
    if not has_pieces:
        which, first = np.unique(which, return_index=True)
        length_index, begins, sizes = length_index[first], begins[first], np.ones(len(first), np.int64)
    entries, range_of_entry = ranges(begins, sizes)
    missing = np.setdiff1d(np.arange(len(wanted)), which)
    nowhere = np.full(len(missing), -1)
    which = np.concatenate((which[range_of_entry], missing))
    order = np.argsort(which, kind="stable")
    columns = (which, np.concatenate((length_index[range_of_entry], nowhere)), np.concatenate((entries, nowhere)))
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
        num_rows_before = num_rows
        for length_index in range(len(tables.counts)):
            low = tables.pool_starts[length_index]
            end = low + tables.counts[length_index]
            high = end
            while low < high:  # the first entry of this length whose id is not below the wanted one
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
            if num_rows > num_rows_before and not has_pieces:
                break
        if num_rows == num_rows_before:
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
    # entries of the pool → draws → repeats → bins → positions
    (found,) = np.nonzero(entries >= 0)
    lengths = length_indices[found]
    draws = unpermuted(pool_rows[lengths], (entries[found] - tables.pool_starts[lengths]).astype(np.uint64))
    repeat_of = np.empty(len(found), np.int64)
    for length_index in np.unique(lengths).tolist():
        of_length = np.flatnonzero(lengths == length_index)
        begin, end = repeats.first_by_length[length_index], repeats.first_by_length[length_index + 1]
        candidates = repeats.repeats_by_length[begin:end]
        firsts = tables.repeat_first_draw[candidates]
        repeat_of[of_length] = candidates[np.searchsorted(firsts, draws[of_length].astype(np.int64), side="right") - 1]
    templates, copies = repeats.repeat_template[repeat_of], tables.repeat_copies[repeat_of].astype(np.int64)
    draws_before = draws.astype(np.int64) - tables.repeat_first_draw[repeat_of]  # of the same repeat
    copies_before = np.concatenate(([0], np.cumsum(tables.repeat_copies, dtype=np.int64)))
    index_in_repeat = draws_before % copies
    index_in_bin_out[found] = index_in_repeat + copies_before[repeat_of] - copies_before[tables.first_repeat[templates]]
    bins = tables.first_bin[templates] + draws_before // copies
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

    An entry gives its draw, by the inverse permutation; the draw its repeat, by bisection among the repeats of its
    length; draw and repeat together the bin; and the bin its position.

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
        while first < last:  # the last repeat of the length whose first draw is not beyond this one
            middle = (first + last + 1) >> 1
            if tables.repeat_first_draw[repeats.repeats_by_length[middle]] <= draw:
                first = middle
            else:
                last = middle - 1
        repeat = repeats.repeats_by_length[first]
        template = repeats.repeat_template[repeat]
        draws_before = draw - tables.repeat_first_draw[repeat]
        index_in_bin = draws_before % tables.repeat_copies[repeat]
        for earlier in range(tables.first_repeat[template], repeat):
            index_in_bin += tables.repeat_copies[earlier]
        index_in_bin_out[e] = index_in_bin
        position_out[e] = np.int64(
            backward(bin_row, np.uint64(tables.first_bin[template] + draws_before // tables.repeat_copies[repeat]))
        )
