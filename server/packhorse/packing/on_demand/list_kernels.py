"""The compiled loops over sequences: counting, packing in an order, shuffling pools, and filling a plan's bins.

Needs Numba, which packing a histogram does not. So other modules import this one inside the functions that need it.
Leaves these functions to `list_packers`, `sequences` and `packhorse.packing.lengths`.

Shape letters: S sequences, D distinct lengths, T templates, N bins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel

_FIRST_NUM_BINS = 64
"""Bins for which `worst_fit_bins` has space at first."""
_BIN_BITS, _BIN_MASK = 32, 0xFFFFFFFF
"""Low bits of an entry of its heap that hold the number of a bin, and their mask."""


@kernel
def count_values(values: NDArray[np.int64], end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts the indices of values by counting.

    Args:
        values: int64 [S], each in [0, end).
        end: a number above every value.

    Returns:
        For each number below `end`, how many values do not exceed it, int64 [end]; and all indices, ascending by
        (value, index), int64 [S].
    """
    ends = np.zeros(end + 1, np.int64)
    for value in values:
        ends[value + 1] += 1
    for value in range(end):
        ends[value + 1] += ends[value]
    order = np.empty(len(values), np.int64)
    # Now ends[v] is where the indices of v begin in `order`. Each that is written moves it, so at last it is their end.
    for i in range(len(values)):
        order[ends[values[i]]] = i
        ends[values[i]] += 1
    return ends[:end], order


@kernel
def first_fit_bins(lengths: Any, capacity: int, limit: int, num_leaves: int, bin_out: Any) -> int:
    """Puts each sequence, in the order given, into the earliest opened bin that has room, in O(log bins) each.

    A binary tree has a leaf for each bin, opened or not, with its room. Every other node has the most room below it;
    the children of node k are 2k and 2k + 1.

    Args:
        lengths: int64 [S], in tokens.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        num_leaves: a power of 2 that is at least the number of bins.
        bin_out: int64 [S], receives each sequence's bin.

    Returns:
        The number of bins.
    """
    tree = np.full(2 * num_leaves, capacity, dtype=np.int64)
    sizes = np.zeros(num_leaves, dtype=np.int64)  # sequences in each bin
    num_bins = 0
    for i in range(len(lengths)):
        length = lengths[i]
        node = 1
        while node < num_leaves:  # down to the first leaf with room: left if there is room, else right
            node <<= 1
            if tree[node] < length:
                node += 1
        b = node - num_leaves
        bin_out[i] = b
        num_bins = max(num_bins, b + 1)
        sizes[b] += 1
        tree[node] = 0 if sizes[b] == limit else tree[node] - length  # a bin at its limit has no room
        node >>= 1
        while node:  # up, as long as the most room changes
            most_room = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == most_room:
                break
            tree[node] = most_room
            node >>= 1
    return num_bins


@kernel
def worst_fit_bins(lengths: Any, capacity: int, limit: int, bin_out: Any) -> int:
    """Puts each sequence, in the order given, into the bin with the most room; of equal ones, the earliest opened.

    Args:
        lengths: int64 [S], in tokens; S is below 2^32.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        bin_out: int64 [S], receives each sequence's bin.

    Returns:
        The number of bins.
    """
    # A binary heap of the bins below their limit, least used first. An entry is (used tokens << 32) | bin.
    heap = np.empty(_FIRST_NUM_BINS, dtype=np.int64)
    sizes = np.zeros(_FIRST_NUM_BINS, dtype=np.int64)  # sequences in each bin
    heap_size = 0
    num_bins = 0
    for i in range(len(lengths)):
        length = lengths[i]
        if heap_size and capacity - (heap[0] >> _BIN_BITS) >= length:
            entry = heap[0] + (length << _BIN_BITS)
            b = heap[0] & _BIN_MASK
            sizes[b] += 1
            bin_out[i] = b
            if sizes[b] == limit:  # the bin leaves the heap, and the last entry takes its place
                heap_size -= 1
                entry = heap[heap_size]
            hole = 0
            while True:  # the entry sinks from the top
                child = 2 * hole + 1
                if child >= heap_size:
                    break
                if child + 1 < heap_size and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= entry:
                    break
                heap[hole] = heap[child]
                hole = child
            heap[hole] = entry
            continue
        b = num_bins
        num_bins += 1
        if num_bins > len(sizes):
            sizes = np.concatenate((sizes, np.zeros(len(sizes), dtype=np.int64)))
            heap = np.concatenate((heap, np.empty(len(heap), dtype=np.int64)))
        sizes[b] = 1
        bin_out[i] = b
        if limit == 1:
            continue
        entry = (length << _BIN_BITS) + b
        hole = heap_size
        heap_size += 1
        # The entry rises from the end.
        while hole and heap[(hole - 1) >> 1] > entry:
            heap[hole] = heap[(hole - 1) >> 1]
            hole = (hole - 1) >> 1
        heap[hole] = entry
    return num_bins


@kernel
def next_fit_bins(lengths: Any, capacity: int, limit: int, bin_out: Any) -> int:
    """Puts each sequence, in the order given, into the last bin, or into a new one if it does not fit there.

    Args:
        lengths: int64 [S], in tokens.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        bin_out: int64 [S], receives each sequence's bin.

    Returns:
        The number of bins.
    """
    b = -1
    room = 0
    size = 0
    for i in range(len(lengths)):
        if lengths[i] > room or size == limit:
            b += 1
            room = capacity
            size = 0
        room -= lengths[i]
        size += 1
        bin_out[i] = b
    return b + 1


@kernel
def shuffle_pools(order: Any, pool_ends: Any, seed: Any) -> None:
    """Shuffles each pool of `order` in place: Fisher-Yates with SplitMix64 draws, the same on every machine.

    Args:
        order: int64 [S], pool after pool.
        pool_ends: int64 [D], exclusive end of each pool in `order`; a pool has fewer than 2^32 sequences.
        seed: uint64.
    """
    state = np.uint64(seed)
    start = 0
    for end in pool_ends:
        for last in range(end - 1, start, -1):
            # SplitMix64: adds a constant to the state, and hashes it.
            state += np.uint64(0x9E3779B97F4A7C15)
            bits = state
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = bits ^ (bits >> np.uint64(31))
            # 32 random bits times the number of choices, divided by 2^32: an offset in [0, last - start].
            chosen = start + np.int64(((bits >> np.uint64(32)) * np.uint64(last - start + 1)) >> np.uint64(32))
            held = order[last]
            order[last] = order[chosen]
            order[chosen] = held
        start = end


@kernel
def draw_templates(
    sizes: Any, nums_bins: Any, flat: Any, distinct: Any, counts: Any, order: Any, indices_out: Any, ends_out: Any
) -> None:
    """Writes out every bin of a plan, each length's sequences in the order of its pool.

    Args:
        sizes: int64 [T], the number of sequences of each template.
        nums_bins: int64 [T], the number of bins of each template.
        flat: int64, the lengths of all templates, one template after another.
        distinct: int64 [D], the distinct lengths, ascending.
        counts: int64 [D], the number of sequences of each length.
        order: int64 [S], the indices of the sequences, pool after pool.
        indices_out: int64 [S], receives the indices bin after bin.
        ends_out: int64 [N], receives each bin's exclusive end in `indices_out`.
    """
    cursors = np.cumsum(counts) - counts  # [D], the place in `order` of each length's next sequence
    pools = np.searchsorted(distinct, flat)  # for each length in `flat`, its index in `distinct`
    at = 0
    b = 0
    first = 0  # where template t begins in `flat`
    for t in range(len(sizes)):
        end = first + sizes[t]
        for _ in range(nums_bins[t]):
            for pool in pools[first:end]:
                indices_out[at] = order[cursors[pool]]
                cursors[pool] += 1
                at += 1
            ends_out[b] = at
            b += 1
        first = end
