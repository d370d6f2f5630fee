"""The compiled loop over the levels of a Parquet page, without the GIL, which counts the lists in it.

Owns the loop only; arguments are trusted. What a page is, and where its levels are, is in `levels`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel

NO_ROW, DAMAGED = -1, -2
"""Results of `add_lists` that are no row: no list has begun yet; the page is damaged."""

_REPETITION, _DEFINITION = 0, 1
"""Indices of the two kinds of levels in the arrays of `add_lists`."""


@kernel
def add_lists(
    data: Any,
    spans: Any,
    width: int,
    null_level: int,
    num_values: int,
    lengths: Any,
    is_null: Any,
    row: int,
) -> int:
    """Counts the values of one Parquet page into the lengths of their lists.

    Each value has a repetition level (0: it begins the next row) and a definition level (a value, an empty list or a
    null list). Levels are in runs: either one level with its number of repeats, or groups of eight bit-packed levels.
    If the next values all continue one list, by a repeated level of both kinds, they are counted at once. This is one
    function because it takes twice the time if cut in two.

    Args:
        data: uint8, the page with its levels.
        spans: int64 [4]: where repetition levels (1 bit each) begin and end in `data`, then the same for definition
            levels.
        width: bits of a definition level, at most 2.
        null_level: the definition level of an empty list. Lower levels are null lists, higher ones are values.
        num_values: levels of each kind in the page: one for each value, and one for each null or empty list.
        lengths: int64 [rows], added to.
        is_null: bool [rows], set to True for null lists.
        row: the row of the last value before this page; NO_ROW for the first page.

    Returns:
        The row of the last value; DAMAGED if the page is damaged.
    """
    at = np.array([spans[0], spans[2]])  # the next byte, for each kind of levels
    stop = np.array([spans[1], spans[3]])  # where their bytes end
    left = np.zeros(2, dtype=np.int64)  # levels left in the current run
    repeated = np.zeros(2, dtype=np.int64)  # the level that the run repeats
    bit = np.full(2, -1)  # the number of the next packed level's first bit; -1 in a run that repeats one level
    done = 0
    while done < num_values:
        for kind in range(2):
            if left[kind]:
                continue
            header: Any = 0  # a number of seven bits a byte; its lowest bit tells the two kinds of runs apart
            shift = 0
            while True:
                if at[kind] >= stop[kind] or shift > 35:  # longer than any header
                    return DAMAGED
                byte = np.int64(data[at[kind]])
                at[kind] += 1
                header |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            left[kind] = header >> 1  # repeats, or groups of eight packed levels
            if header & 1:  # packed levels
                bits = 1 if kind == _REPETITION else width
                bit[kind] = at[kind] * 8
                at[kind] += left[kind] * bits
                left[kind] *= 8
            else:
                if at[kind] >= stop[kind]:
                    return DAMAGED
                bit[kind] = -1
                repeated[kind] = np.int64(data[at[kind]])
                at[kind] += 1
            if left[kind] == 0 or at[kind] > stop[kind]:
                return DAMAGED
        count = min(left[_REPETITION], left[_DEFINITION], num_values - done)
        if bit[_REPETITION] < 0 and repeated[_REPETITION] == 1 and bit[_DEFINITION] < 0:
            if row < 0 or repeated[_DEFINITION] <= null_level:  # only values continue a list, once it has begun
                return DAMAGED
            lengths[row] += count
        else:
            for _ in range(count):
                repetition, definition = repeated[_REPETITION], repeated[_DEFINITION]
                if bit[_REPETITION] >= 0:
                    repetition = (np.int64(data[bit[_REPETITION] >> 3]) >> (bit[_REPETITION] & 7)) & 1
                    bit[_REPETITION] += 1
                if bit[_DEFINITION] >= 0:
                    definition = 0
                    for i in range(width):  # the lowest bit comes first
                        definition |= ((np.int64(data[bit[_DEFINITION] >> 3]) >> (bit[_DEFINITION] & 7)) & 1) << i
                        bit[_DEFINITION] += 1
                if repetition == 0:
                    row += 1  # from NO_ROW to row 0
                if row < 0 or row >= len(lengths):
                    return DAMAGED
                if definition > null_level:
                    lengths[row] += 1
                elif repetition != 0:
                    return DAMAGED
                elif definition < null_level:
                    is_null[row] = True
        left[_REPETITION] -= count
        left[_DEFINITION] -= count
        done += count
    return row
