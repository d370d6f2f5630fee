"""The compiled loops of preparing: counting lengths, filling the pool, sorting pairs, gathering from segments.

Owns what runs once for every sequence, without the GIL; leaves checks of values to `_sources` and meaning to `_passes`.
"""

from typing import Any

import numba

LEAVE_OUT, KEEP_HEAD, KEEP_TAIL, SPLIT = range(4)
"""What the loops do with a sequence longer than `longest`."""


@numba.njit(nogil=True, cache=True)
def add_lengths(lengths: Any, longest: int, split: bool, histogram: Any) -> int:
    """Counts lengths in [1, longest] into `histogram`, which is long enough for them, and returns how many are longer.

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
def fill_pool(
    lengths: Any,
    ids: Any,
    longest: int,
    over: int,
    align: int,
    extra_tokens: int,
    cursors: Any,
    ends: Any,
    pool: Any,
    first_tokens: Any,
) -> int:
    """Writes each id to the next entry of its room, and returns -1, or the first row that finds none.

    Rooms are those of `packhorse.topology.RoomRule`, computed here once more because this is compiled.

    Args:
        lengths: int64 [n], at least 1.
        ids: int64 [n].
        longest: the most tokens of its own that a sequence can have in a bin.
        over: what is done with longer ones, one of the constants above.
        align: a room is a multiple of it.
        extra_tokens: added to a length before that.
        cursors: int64 [largest room + 1], the next entry of each room; advanced.
        ends: int64, as long: the exclusive end of each room's entries.
        pool: uint32 or int64 [n_sequences].
        first_tokens: uint32 or int64 [n_sequences], where each entry begins in its sequence; empty where all are 0.
    """
    is_plain = align == 1 and extra_tokens == 0 and len(first_tokens) == 0
    for i in range(len(lengths)):
        left = lengths[i]
        if is_plain and left <= longest:  # the same as below, at a third of the time
            if left >= len(cursors) or cursors[left] >= ends[left]:
                return i
            pool[cursors[left]] = ids[i]
            cursors[left] += 1
            continue
        first_token = 0
        if left > longest and over != SPLIT:
            if over == LEAVE_OUT:
                continue
            if over == KEEP_TAIL:
                first_token = left - longest
            left = longest
        while left > 0:
            own = min(left, longest)
            room = own + extra_tokens
            if align > 1:
                room = (room + align - 1) // align * align
            if room >= len(cursors) or cursors[room] >= ends[room]:
                return i
            pool[cursors[room]] = ids[i]
            if len(first_tokens):
                first_tokens[cursors[room]] = first_token
            cursors[room] += 1
            first_token += own
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
def find_entries(pool: Any, begins: Any, ends: Any, value: int, entries: Any) -> None:
    """Finds in each ascending segment the first entry with an id of at least `value`."""
    for s in range(len(begins)):
        low = begins[s]
        high = ends[s]
        while low < high:
            middle = (low + high) >> 1
            if pool[middle] < value:
                low = middle + 1
            else:
                high = middle
        entries[s] = low


@numba.njit(nogil=True, cache=True)
def gather(pool: Any, begins: Any, ends: Any, out: Any) -> None:
    """Copies pool[begins[s]:ends[s]] for every s, one after the other, into `out`."""
    at = 0
    for s in range(len(begins)):
        for entry in range(begins[s], ends[s]):
            out[at] = pool[entry]
            at += 1
