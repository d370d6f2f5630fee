"""Packers of a list, whose bins depend on the order of the sequences: first-fit, worst-fit and next-fit.

Owns packing in a given order, and bins as lists. Compiled loops are imported where they are needed, because that takes
long; they are in `list_kernels`. Leaves the choice of the order to `sequences` and `packing/seqpack`, and packers of a
histogram to `packhorse.packing.best_fit`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.on_demand._collector import collector_paused

ListPacker = Callable[[NDArray[np.int64], int, int], tuple[NDArray[np.int64], int]]
"""A function of (lengths in their order: int64 [S], capacity in tokens, most sequences in a bin). It returns each
sequence's bin, int64 [S], and the number of bins. Bins are numbered in the order in which they are opened."""


def first_fit(lengths: NDArray[np.int64], capacity: int, limit: int) -> tuple[NDArray[np.int64], int]:
    """Puts each sequence into the bin opened earliest that has room, in O(S log bins)."""
    from packhorse.packing.on_demand.list_kernels import first_fit_bins

    # The tree of `first_fit_bins` needs a bound on the number of bins. Bins below their limit of sequences are more
    # than half full on average, because what a later one holds did not fit into an earlier one.
    most_bins = min(len(lengths), 2 * int(lengths.sum()) // capacity + len(lengths) // limit + 2)
    num_leaves = 1 << max(most_bins - 1, 0).bit_length()  # the next power of 2
    bin_of = np.empty(len(lengths), dtype=np.int64)
    return bin_of, first_fit_bins(lengths, capacity, limit, num_leaves, bin_of)


def worst_fit(lengths: NDArray[np.int64], capacity: int, limit: int) -> tuple[NDArray[np.int64], int]:
    """Puts each sequence into the bin with the most room, of equal ones the first opened, in O(S log bins)."""
    from packhorse.packing.on_demand.list_kernels import worst_fit_bins

    bin_of = np.empty(len(lengths), dtype=np.int64)
    return bin_of, worst_fit_bins(lengths, capacity, limit, bin_of)


def next_fit(lengths: NDArray[np.int64], capacity: int, limit: int) -> tuple[NDArray[np.int64], int]:
    """Fills one bin after the other in the order given, in O(S)."""
    from packhorse.packing.on_demand.list_kernels import next_fit_bins

    bin_of = np.empty(len(lengths), dtype=np.int64)
    return bin_of, next_fit_bins(lengths, capacity, limit, bin_of)


def in_bins(
    packer: ListPacker, lengths: NDArray[np.int64], order: NDArray[np.int64], capacity: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Packs lengths in an order.

    Args:
        packer: such as `first_fit`.
        lengths: int64 [S], in tokens.
        order: int64 [S], the indices of `lengths` in the order in which they are packed.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.

    Returns:
        Indices into `lengths`, bin after bin, int64 [S], and each bin's exclusive end, int64 [N].
    """
    from packhorse.packing.on_demand.list_kernels import count_values

    bin_of, num_bins = packer(lengths[order], capacity, limit)
    ends, by_bin = count_values(bin_of, num_bins)  # the sequences, sorted by bin
    return order[by_bin], ends


def split_bins(indices: NDArray[np.int64], bin_ends: NDArray[np.int64]) -> list[list[int]]:
    """Returns each bin's indices as a list, from the indices bin after bin and each bin's exclusive end."""
    flat = indices.tolist()
    ends = bin_ends.tolist()
    with collector_paused():  # it would walk all lists that are made here, again and again
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
