"""The compiled loops of preparing, which run once for every sequence, without the GIL.

Owns loops only; arguments are trusted. Leaves checks of values to `input`, and what the numbers are for to `_counting`,
`_spills`, `_merging` and `input/_parquet_levels`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel

LEAVE_OUT, KEEP_HEAD, KEEP_TAIL, SPLIT = range(4)
"""Values of `over` in `fill_pool`: what happens to a sequence longer than `longest`."""


@kernel
def add_lengths(lengths: Any, longest: int, split: bool, histogram: Any) -> int:
    """Counts lengths in [1, longest] into `histogram`, and returns how many lengths are greater.

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
        left = lengths[i]
        if is_plain and left <= longest:  # does the same as the code below, in a third of the time
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
        while left > 0:  # once for each piece
            own = min(left, longest)
            room = max(own + extra_tokens, 1)
            if align > 1:
                room = (room + align - 1) // align * align
            at = room
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


@kernel
def add_lists(
    data: Any,
    ends: Any,
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
    If both levels of the next values are repeated, all these values are counted at once. This is one function because
    it takes twice the time if cut in two.

    Args:
        data: uint8, the page with its levels.
        ends: int64 [4]: where repetition levels (1 bit each) begin and end in `data`, then the same for definition
            levels.
        width: bits of a definition level, at most 2.
        null_level: the definition level of an empty list. Lower levels are null lists, higher ones are values.
        num_values: levels of each kind in the page: one for each value, and one for each null or empty list.
        lengths: int64 [rows], added to.
        is_null: bool [rows], set to True for null lists.
        row: the row of the last value before this page; -1 for the first page.

    Returns:
        The row of the last value; -2 if the page is damaged.
    """
    at = np.array([ends[0], ends[2]])  # the next byte: [0] of repetition levels, [1] of definition levels, as below
    stop = np.array([ends[1], ends[3]])  # where their bytes end
    left = np.zeros(2, dtype=np.int64)  # levels left in the current run
    value = np.zeros(2, dtype=np.int64)  # the level that the run repeats
    bit = np.full(2, -1)  # the number of the next packed level's first bit; -1 in a run that repeats one level
    done = 0
    while done < num_values:
        for which in range(2):
            if left[which]:
                continue
            header: Any = 0  # a number of seven bits a byte; its lowest bit tells the two kinds of runs apart
            shift = 0
            while True:
                if at[which] >= stop[which] or shift > 35:
                    return -2
                byte = np.int64(data[at[which]])
                at[which] += 1
                header |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            left[which] = header >> 1
            if header & 1:  # packed levels
                bits = 1 if which == 0 else width
                bit[which] = at[which] * 8
                at[which] += left[which] * bits
                left[which] *= 8
            else:
                if at[which] >= stop[which]:
                    return -2
                bit[which] = -1
                value[which] = np.int64(data[at[which]])
                at[which] += 1
            if left[which] == 0 or at[which] > stop[which]:
                return -2
        count = min(left[0], left[1], num_values - done)
        if bit[0] < 0 and value[0] == 1 and bit[1] < 0:
            if row < 0 or value[1] <= null_level:
                return -2
            lengths[row] += count
        else:
            for _ in range(count):
                repetition, definition = value[0], value[1]
                if bit[0] >= 0:
                    repetition = (np.int64(data[bit[0] >> 3]) >> (bit[0] & 7)) & 1
                    bit[0] += 1
                if bit[1] >= 0:
                    definition = 0
                    for i in range(width):
                        definition |= ((np.int64(data[bit[1] >> 3]) >> (bit[1] & 7)) & 1) << i
                        bit[1] += 1
                if repetition == 0:
                    row += 1
                if row < 0 or row >= len(lengths):
                    return -2
                if definition > null_level:
                    lengths[row] += 1
                elif repetition != 0:
                    return -2
                elif definition < null_level:
                    is_null[row] = True
        left[0] -= count
        left[1] -= count
        done += count
    return row


@kernel
def unpack_snappy(data: Any, out: Any) -> int:
    """Decompresses the beginning of a raw Snappy block into `out`; returns the bytes written, or -1 if it is damaged.

    A block is a sequence of elements, each with a tag in its first byte: a literal, or a copy of earlier output.

    Args:
        data: uint8, the whole block.
        out: uint8, filled as far as the block reaches.
    """
    at: Any = 0
    while at < len(data) and data[at] >= 128:  # passes over the block's whole size, which the caller knows
        at += 1
    at += 1
    done: Any = 0
    while at < len(data) and done < len(out):
        tag: Any = np.int64(data[at])
        at += 1
        if tag & 3 == 0:  # a literal
            size: Any = tag >> 2
            if size >= 60:  # the size is in the next one to four bytes
                num_bytes: Any = size - 59
                if at + num_bytes > len(data):
                    return -1
                size = 0
                for i in range(num_bytes):
                    size |= np.int64(data[at + i]) << (8 * i)
                at += num_bytes
            size += 1
            if at + size > len(data):
                return -1
            for i in range(min(size, len(out) - done)):
                out[done + i] = data[at + i]
            at += size
        else:  # a copy of `size` bytes from `offset` bytes back
            kind = tag & 3
            num_bytes = 1 if kind == 1 else 2 if kind == 2 else 4
            if at + num_bytes > len(data):
                return -1
            offset: Any = 0
            for i in range(num_bytes):
                offset |= np.int64(data[at + i]) << (8 * i)
            at += num_bytes
            size = (tag >> 2) + 1
            if kind == 1:
                size = ((tag >> 2) & 7) + 4
                offset |= (tag >> 5) << 8
            if offset == 0 or offset > done:
                return -1
            for i in range(min(size, len(out) - done)):
                out[done + i] = out[done - offset + i]
        done = min(done + size, len(out))
    return done
