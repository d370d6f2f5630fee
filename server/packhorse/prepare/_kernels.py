"""The compiled loops of preparing, over sequences or entries of the pool, without the GIL.

Owns loops only; arguments are trusted. Leaves checks of values to `input`, and what the numbers are for to `counting`,
`_spills`, `_merging` and `duplicates`. Loops over pages of Parquet are in `input/parquet_pages`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel

LEAVE_OUT, KEEP_HEAD, KEEP_TAIL, SPLIT = range(4)
"""Values of `over` in `fill_pool`: what happens to a sequence longer than `longest`."""


@kernel
def add_lengths(lengths: Any, longest: int, split: bool, histogram: Any) -> int:
    """Counts lengths up to `longest` into `histogram`, and returns how many lengths are greater.

    Args:
        lengths: int64 [n], at least 1.
        longest: the most tokens of its own that a sequence can have in a bin.
        split: whether to count the pieces of a longer sequence: full ones of `longest` tokens, and the rest.
        histogram: int64, long enough; entry L counts the sequences of length L.
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


@kernel
def fill_pool(
    lengths: Any,
    ids: Any,
    longest: int,
    over: int,
    align: int,
    extra_tokens: int,
    rooms: Any,
    cursors: Any,
    ends: Any,
    pool: Any,
    first_tokens: Any,
) -> int:
    """Writes each id to the next free entry of its room; returns -1, or the first row for which there is none.

    There is none if the rows are not those that were counted, so the file has changed.

    The rule for rooms is `packhorse.topology.RoomRule`, repeated here because compiled code cannot call it.

    Args:
        lengths: int64 [n], at least 1.
        ids: int64 [n].
        longest: the most tokens of its own that a sequence can have in a bin.
        over: what happens to longer sequences, one of the constants above.
        align: the number of which a room is a multiple.
        extra_tokens: tokens added to a length before rounding up, at least -1.
        rooms: int64 [D], the distinct rooms, ascending; empty if `cursors` is indexed by the room itself.
        cursors: int64 [D], or [largest room + 1]: the next free entry of each room; advanced.
        ends: int64, as many: the end of each room's entries, exclusive.
        pool: uint32 or int64 [num_sequences], written.
        first_tokens: uint32 or int64 [num_sequences], written: the first token of each entry in its sequence; empty if
            all are 0.
    """
    is_plain = align == 1 and extra_tokens == 0 and len(first_tokens) == 0 and len(rooms) == 0
    for i in range(len(lengths)):
        length = lengths[i]
        if is_plain and length <= longest:  # its room is its length: the code below would take three times as long
            if length >= len(cursors) or cursors[length] >= ends[length]:
                return i
            pool[cursors[length]] = ids[i]
            cursors[length] += 1
            continue
        first_token = 0
        left = length  # tokens that are still to be written, from `first_token` on
        if length > longest and over != SPLIT:
            if over == LEAVE_OUT:
                continue
            if over == KEEP_TAIL:
                first_token = length - longest
            left = longest
        while left > 0:  # once for each piece
            own = min(left, longest)  # the piece's tokens
            room = max(own + extra_tokens, 1)
            if align > 1:
                room = (room + align - 1) // align * align
            at = room  # the index of the room in `cursors` and `ends`
            if len(rooms) > 0:
                at = np.searchsorted(rooms, room)
                if at < len(rooms) and rooms[at] != room:
                    return i
            if at >= len(cursors) or cursors[at] >= ends[at]:
                return i
            pool[cursors[at]] = ids[i]
            if len(first_tokens):
                first_tokens[cursors[at]] = first_token
            cursors[at] += 1
            first_token += own
            left -= own
    return -1


@kernel
def sort_pairs(firsts: Any, seconds: Any) -> None:
    """Sorts the pairs (firsts[i], seconds[i]) ascending, in place and without further memory: a heapsort."""
    size = len(firsts)
    root = size // 2
    while size > 1:
        if root > 0:  # first the heap is built
            root -= 1
        else:  # then its largest pair goes to the end, again and again
            size -= 1
            firsts[0], firsts[size] = firsts[size], firsts[0]
            seconds[0], seconds[size] = seconds[size], seconds[0]
        parent = root  # and the pair at the root sinks to its place
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


@kernel
def scatter(values: Any, edges: Any, cursors: Any, out: Any) -> None:
    """Copies each segment values[edges[s]:edges[s + 1]] to out[cursors[s]:], and advances the cursors."""
    for s in range(len(cursors)):
        at = cursors[s]
        for entry in range(edges[s], edges[s + 1]):
            out[at] = values[entry]
            at += 1
        cursors[s] = at


@kernel
def find_entries(pool: Any, begins: Any, ends: Any, value: int, entries: Any) -> None:
    """Writes to entries[s] the first entry in begins[s]:ends[s] with an id of at least `value`, or ends[s].

    Ids ascend in each of these segments of the pool.
    """
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


@kernel
def gather(pool: Any, begins: Any, ends: Any, out: Any) -> None:
    """Copies pool[begins[s]:ends[s]] for every s, one after the other, into `out`."""
    at = 0
    for s in range(len(begins)):
        for entry in range(begins[s], ends[s]):
            out[at] = pool[entry]
            at += 1
