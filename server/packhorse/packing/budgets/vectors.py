"""Packing under several budgets: items with a size in each dimension, such as tokens and image tiles.

Owns best-fit-decreasing over classes of items, and a lower bound. A template is a descending tuple of class numbers
instead of lengths, so all code that handles templates works for both. As in `packhorse.packing.best_fit`, which packs
by tokens only, a group is here a set of equal bins. Leaves classes to `size_classes`.

Shape letters: d dimensions (the first is tokens), m distinct sizes, C classes.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.best_fit import Chain, templates_of
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Template

_CLASSES_BETWEEN_SWEEPS = 64
"""Classes that are packed between two removals of the bins that nothing fits into any more."""

_FIRST_NUM_GROUPS = 1024
"""Groups of equal bins for which the arrays have space at first."""


def pack_classes(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], capacities: NDArray[np.int64]
) -> Counter[Template]:
    """Packs by best-fit-decreasing, which compares sums over all dimensions: Σ size / capacity and Σ room / capacity.

    Items are packed by descending sum of their sizes. Each goes into the bin with the least sum of room, among those
    that have room for it in every dimension. As in `best_fit`, a class fills whole groups of equal bins at once, so the
    time does not grow with the number of items.

    Example:
        >>> pack_classes(np.array([[4, 0], [6, 2]]), np.array([2, 2]), np.array([10, 2]))
        Counter({(2, 1): 2})

    Args:
        sizes: sizes of each class: int64 [C, d], each in [0, its capacity].
        counts: number of items of each class: int64 [C], at least 1.
        capacities: a bin's capacity in each dimension: int64 [d].

    Returns:
        Template → multiplicity, with classes counted from 1.
    """
    shares = (sizes / capacities).sum(axis=1)
    order = np.argsort(-shares, kind="stable")
    smallest_to_come = np.minimum.accumulate(sizes[order][::-1], axis=0)[::-1]  # [C, d]: from each turn on
    groups = _EqualBins(capacities)
    for turn, index in enumerate(order.tolist()):
        if turn % _CLASSES_BETWEEN_SWEEPS == 0:
            groups.close_below(smallest_to_come[turn])
        count = int(counts[index])
        while count:
            count -= groups.fill(sizes[index], index + 1, count)
    templates: Counter[Template] = Counter()
    for numbers, num_bins in templates_of(groups.contents()).items():  # numbers in the order of packing
        templates[tuple(sorted(numbers, reverse=True))] += num_bins
    return templates


class _EqualBins:
    """Groups of equal bins, in arrays that are longer than the number of groups, `len(self._contents)`.

    A group has a room, a number of bins and a content, which is a `Chain` of class numbers in place of lengths.
    """

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        self._capacities = capacities
        self._rooms = np.empty((_FIRST_NUM_GROUPS, len(capacities)), dtype=np.int64)  # of each bin of a group
        self._room_sums = np.empty(_FIRST_NUM_GROUPS)  # Σ room / capacity, which best-fit compares
        self._num_bins = np.zeros(_FIRST_NUM_GROUPS, dtype=np.int64)
        self._contents: list[Chain] = []
        self._closed: list[tuple[int, Chain]] = []  # (number of bins, content) of groups that left the arrays

    def fill(self, size: NDArray[np.int64], number: int, count: int) -> int:
        """Puts items of a class into the fullest group with room for one, or into new bins.

        Args:
            size: sizes of the class: int64 [d].
            number: number of the class.
            count: number of items that are not packed yet.

        Returns:
            The number of items that were packed, at least 1.
        """
        num_groups = len(self._contents)
        has_room = (self._rooms[:num_groups] >= size).all(axis=1) & (self._num_bins[:num_groups] > 0)
        fitting = np.flatnonzero(has_room)
        group: int | None = None
        room, content, num_bins = self._capacities, None, count  # new bins, as many as could be needed
        if len(fitting):
            group = int(fitting[np.argmin(self._room_sums[fitting])])
            room, content, num_bins = self._rooms[group].copy(), self._contents[group], int(self._num_bins[group])
        copies = min(count, int((room[size > 0] // size[size > 0]).min()))
        num_full = min(num_bins, count // copies)
        self._append(room - copies * size, num_full, (content, number, copies))
        rest = count - num_full * copies if num_full < num_bins else 0  # fewer than `copies`, in one further bin
        if rest:
            self._append(room - rest * size, 1, (content, number, rest))
        if group is not None:
            self._num_bins[group] -= num_full + (1 if rest else 0)
        return num_full * copies + rest

    def close_below(self, smallest_to_come: NDArray[np.int64]) -> None:
        """Takes the groups without room for the smallest sizes to come, int64 [d], out of the arrays."""
        num_groups = len(self._contents)
        has_room = (self._rooms[:num_groups] >= smallest_to_come).all(axis=1)
        is_open = has_room & (self._num_bins[:num_groups] > 0)
        self._closed += [(int(self._num_bins[group]), self._contents[group]) for group in np.flatnonzero(~is_open)]
        kept = np.flatnonzero(is_open)
        for column in (self._rooms, self._room_sums, self._num_bins):
            column[: len(kept)] = column[kept]
        self._contents = [self._contents[group] for group in kept]

    def contents(self) -> Iterator[tuple[int, Chain]]:
        """Yields (number of bins, content) of all groups with a bin."""
        open_groups = zip(self._num_bins.tolist(), self._contents, strict=False)  # the array is longer
        yield from ((num_bins, content) for num_bins, content in (*self._closed, *open_groups) if num_bins)

    def _append(self, room: NDArray[np.int64], num_bins: int, content: Chain) -> None:
        """Appends a group, and doubles the arrays if they are full."""
        group = len(self._contents)
        if group == len(self._room_sums):  # what the second half holds is overwritten before it is read
            self._rooms = np.concatenate((self._rooms, self._rooms))
            self._room_sums = np.concatenate((self._room_sums, self._room_sums))
            self._num_bins = np.concatenate((self._num_bins, self._num_bins))
        self._rooms[group], self._num_bins[group] = room, num_bins
        self._room_sums[group] = (room / self._capacities).sum()
        self._contents.append(content)


def vector_bound(sizes: NDArray[np.int64], counts: NDArray[np.int64], capacities: NDArray[np.int64]) -> int:
    """Returns a lower bound on the number of bins: the largest `lower_bound` of any single dimension.

    Example:
        >>> vector_bound(np.array([[4, 2], [6, 2]]), np.array([2, 2]), np.array([10, 3]))
        4

    Args:
        sizes: sizes of items, which need not be distinct: int64 [m, d]; their own sizes, not those of their classes.
        counts: number of items of each size: int64 [m].
        capacities: a bin's capacity in each dimension: int64 [d].
    """
    bounds = []
    for column, capacity in zip(sizes.T, capacities.tolist(), strict=True):
        values, ranks = np.unique(column, return_inverse=True)
        nums_items = np.bincount(ranks, counts).astype(np.int64)
        pairs = [(size, num) for size, num in zip(values.tolist(), nums_items.tolist(), strict=True) if size]
        no_limit = int(counts.sum())  # of items in a bin
        bounds.append(bound_of_pairs(pairs[::-1], capacity, no_limit))
    return max(bounds)
