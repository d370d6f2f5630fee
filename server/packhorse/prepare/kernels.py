"""The compiled loops of preparing: counting lengths, placing ids, and gathering a window of sorted segments.

Owns what runs once for every sequence, without the GIL; leaves checks of values to `sources` and meaning to `passes`.
"""

from typing import Any

import numba


@numba.njit(nogil=True, cache=True)
def add_lengths(lengths: Any, longest: int, histogram: Any) -> int:
    """Counts lengths in [1, longest] into `histogram`, which has room for them, and returns how many are longer."""
    num_over = 0
    for i in range(len(lengths)):
        length = lengths[i]
        if length > longest:
            num_over += 1
        else:
            histogram[length] += 1
    return num_over


@numba.njit(nogil=True, cache=True)
def place_ids(lengths: Any, ids: Any, longest: int, truncate: bool, cursors: Any, ends: Any, pool: Any) -> int:
    """Writes each id to the next place of its length, and returns -1, or the first row that has no place left.

    Args:
        lengths: int64 [n], at least 1.
        ids: int64 [n].
        longest: max_seq_len.
        truncate: whether longer sequences take places of length `longest`; otherwise they are left out.
        cursors: int64 [longest placed + 1], the next place of each length; advanced.
        ends: int64, as long: the exclusive end of each length's places.
        pool: uint32 or int64 [n_sequences].
    """
    for i in range(len(lengths)):
        length = lengths[i]
        if length > longest:
            if not truncate:
                continue
            length = longest
        if length >= len(cursors) or cursors[length] >= ends[length]:
            return i
        pool[cursors[length]] = ids[i]
        cursors[length] += 1
    return -1


@numba.njit(nogil=True, cache=True)
def find_places(pool: Any, starts: Any, ends: Any, value: int, places: Any) -> None:
    """Finds in each ascending segment the first place with an id of at least `value`."""
    for s in range(len(starts)):
        low = starts[s]
        high = ends[s]
        while low < high:
            middle = (low + high) >> 1
            if pool[middle] < value:
                low = middle + 1
            else:
                high = middle
        places[s] = low


@numba.njit(nogil=True, cache=True)
def gather(pool: Any, begins: Any, ends: Any, out: Any) -> None:
    """Copies pool[begins[s]:ends[s]] for every s, one after the other, into `out`."""
    at = 0
    for s in range(len(begins)):
        for place in range(begins[s], ends[s]):
            out[at] = pool[place]
            at += 1
