"""More bins from the same sequences: the fullest bins are halved.

Owns the halving, which never makes a bin outgrow its capacity or its number of sequences; leaves how many bins are
wanted, and where they go, to its callers.
"""

import heapq
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def halve_into(bins: list[list[int]], lengths: NDArray[np.integer], empty: Iterable[int]) -> list[int]:
    """Fills empty bins, in place: the fullest bin that still has two sequences is halved into each, again and again.

    Args:
        bins: each bin's sequences, as indices into `lengths`, by descending length.
        lengths: int [S], in tokens.
        empty: indices of the empty bins, in the order in which they are filled.

    Returns:
        The bins that stay empty, because every other bin has one sequence only; in the order of `empty`.
    """
    heap: list[tuple[int, int]] = []  # (-tokens, bin) of bins with at least two sequences

    def offer(index: int) -> None:
        if len(bins[index]) > 1:
            heapq.heappush(heap, (-int(lengths[bins[index]].sum(dtype=np.int64)), index))

    for index in range(len(bins)):
        offer(index)
    waiting = deque(empty)
    while waiting and heap:
        added = waiting.popleft()
        _, halved = heapq.heappop(heap)
        bins[halved], bins[added] = _halves(bins[halved], lengths)
        offer(halved)
        offer(added)
    return list(waiting)


def split_to_multiple(
    indices: NDArray[np.int64], bin_ends: NDArray[np.int64], lengths: NDArray[np.integer], multiple: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Makes the number of bins a multiple, without an empty bin.

    Args:
        indices: int64 [S], the sequences of all bins laid end to end, as indices into `lengths`.
        bin_ends: int64 [N], exclusive end of every bin in `indices`; no bin is empty.
        lengths: int [S], in tokens.
        multiple: at least 1.

    Returns:
        `indices` and `bin_ends` of ⌈N / multiple⌉ · multiple bins; the added ones stand at the end.

    Raises:
        ValueError: there are fewer sequences than that.
    """
    num_bins = len(bin_ends)
    num_added = -num_bins % multiple
    if not num_added:
        return indices, bin_ends
    if len(indices) < num_bins + num_added:
        raise ValueError(
            f"a multiple of {multiple} needs {num_bins + num_added} bins, and there are only {len(indices)} sequences: "
            f"no bin can be empty"
        )
    starts = np.concatenate(([0], bin_ends[:-1]))
    tokens = np.add.reduceat(lengths[indices], starts, dtype=np.int64)
    touched = np.flatnonzero(bin_ends - starts > 1)  # of these, no more than the num_added fullest are ever halved
    touched = np.sort(touched[np.argsort(-tokens[touched], kind="stable")[:num_added]])
    bins = [indices[starts[b] : bin_ends[b]] for b in touched.tolist()]
    members = [b[np.argsort(-lengths[b].astype(np.int64), kind="stable")].tolist() for b in bins]
    members += [[] for _ in range(num_added)]
    halve_into(members, lengths, range(len(touched), len(members)))
    parts: list[NDArray[np.int64]] = []
    sizes = bin_ends - starts
    done = 0
    for b, kept in zip(touched.tolist(), members, strict=False):
        parts += [indices[done : starts[b]], np.array(kept, dtype=np.int64)]
        done = int(bin_ends[b])
        sizes[b] = len(kept)
    added = members[len(touched) :]
    parts += [indices[done:], *(np.array(group, dtype=np.int64) for group in added)]
    return np.concatenate(parts), np.cumsum(np.concatenate((sizes, [len(group) for group in added])))


def _halves(members: list[int], lengths: NDArray[np.integer]) -> tuple[list[int], list[int]]:
    """Splits members (at least two) into two non-empty lists of about equal tokens."""
    kept: list[int] = []
    moved: list[int] = []
    balance = 0  # tokens of kept - tokens of moved
    for member in members:  # descending lengths: the longest first into the emptier half
        if balance <= 0:
            kept.append(member)
            balance += int(lengths[member])
        else:
            moved.append(member)
            balance -= int(lengths[member])
    return kept, moved
