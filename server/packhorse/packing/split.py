"""More bins from the same sequences: the fullest bins are halved until there are as many bins as wanted.

No bin becomes fuller or gets more sequences than it had. Assignments use it to fill a last step, and packing on demand
to make the number of bins a multiple.
"""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_or


@kernel_or()
def halve_into(members: Any, starts: Any, sizes: Any, lengths: Any, empty: Any) -> int:
    """Fills empty bins one by one, by halving the fullest bin that has at least two sequences.

    Bin b holds `members[starts[b] : starts[b] + sizes[b]]`. A bin is halved within its own range of `members`: first
    the sequences that it keeps, then those that move to the empty bin.

    Example:
        >>> members, starts, sizes = np.arange(3), np.array([0, 0]), np.array([3, 0])
        >>> halve_into(members, starts, sizes, np.array([5, 4, 3]), np.array([1]))
        1
        >>> starts.tolist(), sizes.tolist()
        ([0, 1], [1, 2])

    Args:
        members: int64 [S], each bin's sequences, as indices into `lengths`, by descending length; reordered.
        starts: int64 [N], overwritten.
        sizes: int64 [N], overwritten; 0 for an empty bin.
        lengths: int [S], in tokens.
        empty: int64 [E], the empty bins, in the order in which they are filled.

    Returns:
        How many of the `empty` bins were filled: all of them, unless no bin has two sequences any more.
    """
    tokens = np.zeros(len(sizes), np.int64)
    # Heap of (-tokens, bin), for bins with at least two sequences. Empty at first; Numba needs a type.
    fullest = [(np.int64(0), np.int64(-1)) for _ in range(0)]
    largest = 0
    for b in range(len(sizes)):
        largest = max(largest, sizes[b])
        for m in range(starts[b], starts[b] + sizes[b]):
            tokens[b] += lengths[members[m]]
        if sizes[b] > 1:
            fullest.append((-tokens[b], np.int64(b)))
    heapq.heapify(fullest)
    moved = np.empty(largest, np.int64)
    num_filled = 0
    while num_filled < len(empty) and len(fullest):
        _, halved = heapq.heappop(fullest)
        added = empty[num_filled]
        num_filled += 1
        balance = np.int64(0)  # tokens that are kept minus tokens that move
        moved_tokens = np.int64(0)
        num_kept, num_moved = 0, 0
        start = starts[halved]
        for m in range(start, start + sizes[halved]):  # the longest first, each into the emptier half
            member = members[m]
            length = lengths[member]
            if balance <= 0:
                members[start + num_kept] = member
                num_kept += 1
                balance += length
            else:
                moved[num_moved] = member
                num_moved += 1
                moved_tokens += length
                balance -= length
        for m in range(num_moved):
            members[start + num_kept + m] = moved[m]
        starts[added], sizes[added], tokens[added] = start + num_kept, num_moved, moved_tokens
        sizes[halved] = num_kept
        tokens[halved] -= moved_tokens
        if num_kept > 1:
            heapq.heappush(fullest, (-tokens[halved], halved))
        if num_moved > 1:
            heapq.heappush(fullest, (-tokens[added], np.int64(added)))
    return num_filled


def laid_end_to_end(
    members: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Copies the members of all bins into one array, in the order of the bins, which `halve_into` does not keep.

    Example:
        >>> members, ends = laid_end_to_end(np.array([7, 8, 9]), np.array([1, 0]), np.array([2, 1]))
        >>> members.tolist(), ends.tolist()
        ([8, 9, 7], [2, 3])

    Args:
        members: the members of all bins: int64 [S].
        starts: index in `members` at which each bin begins: int64 [N].
        sizes: number of members of each bin: int64 [N].

    Returns:
        The members, bin after bin, and each bin's exclusive end: int64 [S] and int64 [N].
    """
    ends = np.cumsum(sizes)
    new_starts = ends - sizes
    shifts = np.repeat(starts - new_starts, sizes)  # for each new place, how far behind it the member was
    return members[np.arange(len(shifts)) + shifts], ends


def split_to_multiple(
    indices: NDArray[np.int64],
    bin_ends: NDArray[np.int64],
    lengths: NDArray[np.integer],
    multiple: int,
    *,
    allow_empty: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits bins until their number is a multiple.

    Example:
        >>> indices, bin_ends = split_to_multiple(np.arange(3), np.array([3]), np.array([5, 4, 3]), 2)
        >>> indices.tolist(), bin_ends.tolist()
        ([0, 1, 2], [1, 3])

    Args:
        indices: int64 [S], the sequences of all bins laid end to end, as indices into `lengths`.
        bin_ends: int64 [N], exclusive end of every bin in `indices`; no bin is empty.
        lengths: int [S], in tokens.
        multiple: at least 1.
        allow_empty: whether bins at the end may be empty if there are fewer sequences than bins.

    Returns:
        `indices` and `bin_ends` of ⌈N / multiple⌉ · multiple bins; the added ones are at the end.

    Raises:
        ValueError: there are fewer sequences than bins, and `allow_empty` is False.
    """
    num_bins = len(bin_ends)
    num_added = -num_bins % multiple
    if not num_added:
        return indices, bin_ends
    if len(indices) < num_bins + num_added and not allow_empty:
        raise ValueError(
            f"a multiple of {multiple} needs {num_bins + num_added} bins, and there are only {len(indices)} sequences: "
            "set allow_empty=True, ask for a smaller multiple, or give more sequences"
        )
    starts = np.concatenate(([0], bin_ends[:-1])).astype(np.int64)
    sizes = bin_ends - starts
    bin_of = np.repeat(np.arange(num_bins), sizes)
    signed_lengths = lengths[indices].astype(np.int64)
    members = indices[np.lexsort((-signed_lengths, bin_of))]  # bin after bin, each by descending length
    starts = np.concatenate((starts, np.zeros(num_added, np.int64)))
    sizes = np.concatenate((sizes, np.zeros(num_added, np.int64)))
    sizes_before = sizes[:num_bins].copy()
    halve_into(members, starts, sizes, lengths, np.arange(num_bins, num_bins + num_added))
    is_whole = np.repeat(sizes[:num_bins] == sizes_before, sizes_before)  # for each sequence, whether its bin was kept
    members[is_whole] = indices[is_whole]  # a bin that was not halved keeps its order
    return laid_end_to_end(members, starts, sizes)
