"""The compiled loops of the way back: from ids to the pool's entries, and from entries to positions.

Owns what `EpochView.locate` runs without the GIL. Every array and its meaning is documented in `plan_index`, and the
way there is in `kernels`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel
from packhorse.epoch.kernels.permutation import backward


@kernel
def find_entries(
    tables: Any, pool: Any, wanted: Any, has_pieces: bool, which_out: Any, length_index_out: Any, entry_out: Any
) -> int:
    """Finds ids in the pool and returns how many rows that takes; those beyond the arrays' size are only counted.

    Every wanted id has at least one row, in the order asked for: (which id, index into lengths, index into the pool),
    with -1 for both indices where the dataset lacks it. Only where there are pieces can it have more than one.
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


@kernel
def place_entries(
    tables: Any,
    runs: Any,
    pool_rows: Any,
    bin_row: Any,
    length_indices: Any,
    entries: Any,
    position_out: Any,
    index_in_bin_out: Any,
) -> None:
    """Finds where the pool's entries stand in the epoch; rows with entry -1 are left as they are.

    A draw's run is found by bisection among the runs of its length.
    """
    for e in range(len(entries)):
        if entries[e] < 0:
            continue
        length_index = length_indices[e]
        row = pool_rows[length_index]
        draw = np.int64(backward(row, np.uint64(entries[e] - tables.pool_starts[length_index])))
        first = runs.first_by_length[length_index]
        last = runs.first_by_length[length_index + 1] - 1
        while first < last:
            middle = (first + last + 1) >> 1
            if tables.run_first_draw[runs.runs_by_length[middle]] <= draw:
                first = middle
            else:
                last = middle - 1
        run = runs.runs_by_length[first]
        template = runs.run_template[run]
        ahead = draw - tables.run_first_draw[run]
        index_in_bin = ahead % tables.run_copies[run]
        for earlier in range(tables.first_run[template], run):
            index_in_bin += tables.run_copies[earlier]
        index_in_bin_out[e] = index_in_bin
        position_out[e] = np.int64(
            backward(bin_row, np.uint64(tables.first_bin[template] + ahead // tables.run_copies[run]))
        )
