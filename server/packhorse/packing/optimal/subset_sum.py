"""Filling one bin as well as possible: a subset sum over bitsets.

Owns the compiled loop. Leaves which sequences it chooses from to `online` and `repacking`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel


@kernel
def fullest_subset(sizes: NDArray[np.int64], room: int, limit: int) -> NDArray[np.int64]:
    """Returns which sizes together come closest to `room` without exceeding it.

    A bitset of reachable sums grows by one size after the other and remembers the size that reached each sum first, so
    that a sum consists of the largest sizes possible. The search ends when `room` itself is reached.

    Args:
        sizes: int64 [n], descending, each at least 1.
        room: at least 0.
        limit: the most sizes to take.

    Returns:
        Indices into `sizes`, int64, descending.
    """
    num_words = (room >> 6) + 1
    reached = np.zeros(num_words, np.uint64)
    extendable = np.zeros(num_words, np.uint64)  # sums of fewer than `limit` sizes
    last = np.empty(room + 1, np.int32)  # the size that a sum's first way ends with
    taken = np.zeros(room + 1, np.int32)  # how many sizes it takes
    reached[0] = np.uint64(1)
    if limit > 0:
        extendable[0] = np.uint64(1)
    top = 0  # greatest sum reached
    for i in range(len(sizes)):
        size = sizes[i]
        if size > room:
            continue
        words, bits = size >> 6, np.uint64(size & 63)
        highest = min(room, top + size)
        for word in range(highest >> 6, words - 1, -1):  # downwards, so that no size is taken twice
            shifted = extendable[word - words] << bits
            if bits and word > words:
                shifted |= extendable[word - words - 1] >> (np.uint64(64) - bits)
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
                    taken[total] = taken[total - size] + 1
                    if taken[total] < limit:
                        extendable[word] |= mask
                    top = max(top, total)
        if top == room:
            break
    chosen = np.empty(taken[top], np.int64)
    rest = top
    for k in range(len(chosen)):
        chosen[k] = last[rest]
        rest -= sizes[last[rest]]
    return chosen
