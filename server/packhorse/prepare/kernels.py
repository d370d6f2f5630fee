"""The compiled loops of preparing: counting lengths, placing ids, sorting pairs, and gathering from sorted segments.

Owns what runs once for every sequence, without the GIL; leaves checks of values to `sources` and meaning to `passes`.
"""

from typing import Any

import numba

LEAVE_OUT, KEEP_HEAD, KEEP_TAIL, SPLIT = range(4)
"""What the loops do with a sequence longer than `longest`."""


@numba.njit(nogil=True, cache=True)
def add_lengths(lengths: Any, longest: int, split: bool, histogram: Any) -> int:
    """Counts lengths in [1, longest] into `histogram`, which has room for them, and returns how many are longer.

    Where `split`, the pieces of those are counted too.
    """
    num_over = 0
    for i in range(len(lengths)):
        length = lengths[i]
        if length > longest:
            num_over += 1
            if split:
                histogram[longest] += length // longest
                if length % longest:
                    histogram[length % longest] += 1
        else:
            histogram[length] += 1
    return num_over


@numba.njit(nogil=True, cache=True)
def place_ids(
    lengths: Any,
    ids: Any,
    longest: int,
    over: int,
    align: int,
    extra_tokens: int,
    cursors: Any,
    ends: Any,
    pool: Any,
    starts: Any,
) -> int:
    """Writes each id to the next place of its planned length, and returns -1, or the first row that finds no place.

    Args:
        lengths: int64 [n], at least 1.
        ids: int64 [n].
        longest: the most tokens of its own that a sequence can have in a bin.
        over: what is done with longer ones, one of the constants above.
        align: a planned length is a multiple of it.
        extra_tokens: added to a length before that.
        cursors: int64 [longest planned + 1], the next place of each planned length; advanced.
        ends: int64, as long: the exclusive end of each planned length's places.
        pool: uint32 or int64 [n_sequences].
        starts: uint32 or int64 [n_sequences] for each entry's first token; empty where all are 0.
    """
    is_plain = align == 1 and extra_tokens == 0 and len(starts) == 0
    for i in range(len(lengths)):
        left = lengths[i]
        if is_plain and left <= longest:  # the same as below, at a third of the time
            if left >= len(cursors) or cursors[left] >= ends[left]:
                return i
            pool[cursors[left]] = ids[i]
            cursors[left] += 1
            continue
        start = 0
        if left > longest and over != SPLIT:
            if over == LEAVE_OUT:
                continue
            if over == KEEP_TAIL:
                start = left - longest
            left = longest
        while left > 0:
            own = min(left, longest)
            planned = own + extra_tokens
            if align > 1:
                planned = (planned + align - 1) // align * align
            if planned >= len(cursors) or cursors[planned] >= ends[planned]:
                return i
            pool[cursors[planned]] = ids[i]
            if len(starts):
                starts[cursors[planned]] = start
            cursors[planned] += 1
            start += own
            left -= own
    return -1


@numba.njit(nogil=True, cache=True)
def sort_pairs(firsts: Any, seconds: Any) -> None:
    """Sorts (firsts[i], seconds[i]) ascending, in place and without memory of its own (heapsort)."""
    size = len(firsts)
    root = size // 2
    while size > 1:
        if root > 0:
            root -= 1
        else:
            size -= 1
            firsts[0], firsts[size] = firsts[size], firsts[0]
            seconds[0], seconds[size] = seconds[size], seconds[0]
        parent = root
        while 2 * parent + 1 < size:
            child = 2 * parent + 1
            if child + 1 < size and (
                firsts[child] < firsts[child + 1]
                or (firsts[child] == firsts[child + 1] and seconds[child] < seconds[child + 1])
            ):
                child += 1
            if firsts[parent] > firsts[child] or (
                firsts[parent] == firsts[child] and seconds[parent] >= seconds[child]
            ):
                break
            firsts[parent], firsts[child] = firsts[child], firsts[parent]
            seconds[parent], seconds[child] = seconds[child], seconds[parent]
            parent = child


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
