"""Filling one bin as well as possible: a compiled loop for the subset sum problem, over bitsets.

Leaves the sequences among which it chooses to `on_demand/next_bin` and `repacking`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel


@kernel
def fullest_subset(sizes: NDArray[np.int64], room: int, limit: int) -> NDArray[np.int64]:
    """Returns which sizes have the greatest sum that does not exceed `room`.

    Bit s of a bitset, in words of 64 bits, says whether the sum s can be reached. The sizes are added to the sums one
    after another, the largest first; each sum remembers the size with which it was first reached. So a sum is made of
    sizes as large as possible. The search ends as soon as `room` itself is reached.

    With a limit that binds, the result may not be the best: only the first way to each sum is known, and it may take
    more sizes than another.

    Args:
        sizes: int64 [n], descending, each at least 1.
        room: the greatest sum, at least 0.
        limit: the most sizes to take.

    Returns:
        Indices into `sizes`, int64, descending.
    """
    num_words = (room >> 6) + 1
    reached = np.zeros(num_words, np.uint64)
    extendable = np.zeros(num_words, np.uint64)  # bits of sums of fewer than `limit` sizes
    last = np.empty(room + 1, np.int32)  # index of the size with which a sum was first reached
    num_taken = np.zeros(room + 1, np.int32)  # number of sizes in it
    reached[0] = np.uint64(1)
    if limit > 0:
        extendable[0] = np.uint64(1)
    top = 0  # greatest sum reached
    for i in range(len(sizes)):
        size = sizes[i]
        if size > room:
            continue
        word_shift, bit_shift = size >> 6, np.uint64(size & 63)  # adding a size shifts the bitset
        highest = min(room, top + size)
        for word in range(highest >> 6, word_shift - 1, -1):  # downwards, so that no size is taken twice
            shifted = extendable[word - word_shift] << bit_shift
            if bit_shift and word > word_shift:
                shifted |= extendable[word - word_shift - 1] >> (np.uint64(64) - bit_shift)
            new = shifted & ~reached[word]
            if not new:
                continue
            for bit in range(64):
                if new >> np.uint64(bit) & np.uint64(1):
                    total = (word << 6) + bit
                    if total > room:
                        break
                    mask = np.uint64(1) << np.uint64(bit)
                    reached[word] |= mask
                    last[total] = i
                    num_taken[total] = num_taken[total - size] + 1
                    if num_taken[total] < limit:
                        extendable[word] |= mask
                    top = max(top, total)
        if top == room:
            break
    chosen = np.empty(num_taken[top], np.int64)
    rest = top
    for k in range(len(chosen)):
        chosen[k] = last[rest]
        rest -= sizes[last[rest]]
    return chosen
