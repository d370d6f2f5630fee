"""Packing under several budgets: items with a size in each dimension, such as tokens and image tiles.

Owns classes of items with similar sizes, best-fit-decreasing over these classes, and a lower bound. A template then is
a descending tuple of class numbers instead of lengths, so all code that handles templates works for both. Leaves
packing by tokens only to `best_fit`.

Shape letters: n items, d dimensions (the first is tokens), m distinct sizes, C classes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Template

MOST_CLASSES = 8192
"""Most classes by default. More take longer to plan and hardly save a bin."""

_MOST_KEYS = 2**62
"""Most combinations of values that `distinct_rows` writes as one int64 each."""
_WORTH_A_CHOICE = 0.005
"""Share of all bins that rounding sizes up may waste, so that classes have several items, and epochs differ."""

_CLASSES_BETWEEN_SWEEPS = 64
"""Classes that are packed between two removals of the bins that nothing fits into any more."""

_Content = tuple[Any, int, int] | None
"""Content of a bin as a linked list: (the content before, class number, copies)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SizeClasses:
    """Classes of items with similar sizes. An item is planned as if it had the largest sizes of its class.

    Example:
        >>> classes = SizeClasses.of(np.array([[20, 0], [700, 3]]), np.array([1, 2]), np.array([1024, 4]))
        >>> classes.sizes.tolist(), classes.numbers_of(np.array([[700, 3], [20, 0]])).tolist()
        ([[20, 0], [700, 3]], [2, 1])
    """

    sizes: NDArray[np.int64]
    """Largest size of the class's items in each dimension: int64 [C, d]; classes ascend by cell."""
    quanta: NDArray[np.int64]
    """Unit of size in each dimension: int64 [d]. An item's cell is ⌈size / quantum⌉ in each dimension, and items with
    equal cells are one class."""

    @classmethod
    def of(
        cls,
        values: NDArray[np.int64],
        counts: NDArray[np.int64],
        capacities: NDArray[np.int64],
        most: int = MOST_CLASSES,
        *,
        items_per_class: int = 8,
    ) -> "SizeClasses":
        """Returns classes with several items each, which different epochs can exchange for each other.

        Starts with a class for each distinct size. While there are too many classes, it doubles the quantum of the
        dimension in which this wastes the smallest share of the bins. It stops before it wastes more than half a
        percent of all bins, unless there are more than `most` classes.

        Args:
            values: distinct sizes of items: int64 [m, d]; each is in [0, its capacity], with at least one token.
            counts: number of items of each size: int64 [m].
            capacities: a bin's capacity in each dimension: int64 [d].
            most: the most classes. A size of 0 never shares a class with others, so there may be 2^(d - 1) more.
            items_per_class: mean number of items in a class that is wanted; 1 for a class for each distinct size, if
                nothing is exchanged.
        """
        quanta = np.ones(len(capacities), dtype=np.int64)
        tops, _ = _tops(values, quanta)
        few = min(most, int(counts.sum()) // items_per_class)
        allowed = _WORTH_A_CHOICE * (counts @ values / capacities).max()
        while len(tops) > few and (quanta < capacities).any():
            tried = []
            for dimension in np.flatnonzero(quanta < capacities).tolist():
                doubled = quanta.copy()
                doubled[dimension] *= 2
                larger, which = _tops(values, doubled)
                waste = (counts @ (larger[which] - values) / capacities).max()
                tried.append((float(waste), dimension, doubled, larger))
            waste, _, doubled, fewer = min(tried, key=lambda one: one[:2])
            if len(tops) <= most and waste > allowed:
                break
            quanta, tops = doubled, fewer
        return cls(sizes=tops, quanta=quanta)

    def numbers_of(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the class number of each item, counted from 1: int64 [n].

        Args:
            sizes: sizes of items, which were among the `values` of `of`: int64 [n, d].
        """
        _, ranks = distinct_rows(-(-np.concatenate((self.sizes, sizes)) // self.quanta))
        return ranks[len(self.sizes) :] + 1  # the first C rows are all classes, in order, so ranks are classes


def distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the index of one row of each distinct value, in ascending order, and for each row the rank of its value.

    Example:
        >>> distinct_rows(np.array([[5, 1], [3, 0], [5, 1]]))
        (array([1, 0]), array([1, 0, 1]))

    Args:
        rows: int64 [n, d], each value in [0, 2^31).

    Returns:
        Indices of the m distinct rows, int64 [m], and ranks in [0, m), int64 [n].
    """
    keys, num_keys = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T:
        num_values = int(column.max(initial=0)) + 1
        if num_keys * num_values > _MOST_KEYS:  # ranks have the same order and are smaller
            keys, num_keys = np.unique(keys, return_inverse=True)[1], len(rows)
        keys, num_keys = keys * num_values + column, num_keys * num_values
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which


def _tops(values: NDArray[np.int64], quanta: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the largest sizes in each cell, int64 [C, d], and the index of each value's cell, int64 [m]."""
    first, which = distinct_rows(-(-values // quanta))
    tops = np.zeros((len(first), values.shape[1]), dtype=np.int64)
    np.maximum.at(tops, which, values)
    return tops, which


def pack_classes(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], capacities: NDArray[np.int64]
) -> Counter[Template]:
    """Packs by best-fit-decreasing. What is compared is a sum over dimensions: Σ size / capacity.

    Items are packed by descending sum. Each goes into the bin that has room for it in every dimension and, of these,
    the least sum of room left. As in `best_fit` a class fills whole groups of equal bins at once, so the time does not
    grow with the number of items.

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
    least = np.minimum.accumulate(sizes[order][::-1], axis=0)[::-1]  # [turn]: the smallest sizes from this turn on
    groups = _Groups(capacities)
    for turn, index in enumerate(order.tolist()):
        if turn % _CLASSES_BETWEEN_SWEEPS == 0:
            groups.close_below(least[turn])
        count = int(counts[index])
        while count:
            count -= groups.fill(sizes[index], index + 1, count)
    templates: Counter[Template] = Counter()
    for num_bins, content in groups.all():
        template: list[int] = []
        while content is not None:
            content, number, copies = content
            template += [number] * copies
        templates[tuple(sorted(template, reverse=True))] += num_bins
    return templates


class _Groups:
    """Groups of equal bins, in arrays that are longer than the number of groups, `len(self._contents)`."""

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        self._capacities = capacities
        self._rooms = np.empty((1024, len(capacities)), dtype=np.int64)
        self._slack = np.empty(1024)
        self._num_bins = np.zeros(1024, dtype=np.int64)
        self._contents: list[_Content] = []
        self._closed: list[tuple[int, _Content]] = []

    def fill(self, size: NDArray[np.int64], number: int, count: int) -> int:
        """Puts items of a class into the fullest group with room for one, or into new bins.

        Args:
            size: sizes of the class: int64 [d].
            number: number of the class.
            count: number of items that are not packed yet.

        Returns:
            The number of items that were packed, at least 1.
        """
        used = len(self._contents)
        has_room = (self._rooms[:used] >= size).all(axis=1) & (self._num_bins[:used] > 0)
        fitting = np.flatnonzero(has_room)
        room, content, num_bins, taken = self._capacities, None, count, None
        if len(fitting):
            taken = int(fitting[np.argmin(self._slack[fitting])])
            room, content, num_bins = self._rooms[taken].copy(), self._contents[taken], int(self._num_bins[taken])
        copies = min(count, int((room[size > 0] // size[size > 0]).min()))
        num_full = min(num_bins, count // copies)
        self._open(room - copies * size, num_full, (content, number, copies))
        rest = count - num_full * copies if num_full < num_bins else 0
        if rest:
            self._open(room - rest * size, 1, (content, number, rest))
        if taken is not None:
            self._num_bins[taken] -= num_full + (rest > 0)
        return num_full * copies + rest

    def close_below(self, least: NDArray[np.int64]) -> None:
        """Removes the bins that have no room for `least`, the smallest sizes to come, from the arrays."""
        used = len(self._contents)
        is_open = (self._rooms[:used] >= least).all(axis=1) & (self._num_bins[:used] > 0)
        self._closed += [(int(self._num_bins[at]), self._contents[at]) for at in np.flatnonzero(~is_open)]
        kept = np.flatnonzero(is_open)
        for column in (self._rooms, self._slack, self._num_bins):
            column[: len(kept)] = column[kept]
        self._contents = [self._contents[at] for at in kept]

    def all(self) -> Iterator[tuple[int, _Content]]:
        """Yields (number of bins, content) of all groups with a bin."""
        open_groups = zip(self._num_bins.tolist(), self._contents, strict=False)
        yield from ((num_bins, content) for num_bins, content in (*self._closed, *open_groups) if num_bins)

    def _open(self, room: NDArray[np.int64], num_bins: int, content: _Content) -> None:
        """Appends a group, and doubles the arrays if they are full."""
        at = len(self._contents)
        if at == len(self._slack):
            self._rooms = np.concatenate((self._rooms, self._rooms))
            self._slack = np.concatenate((self._slack, self._slack))
            self._num_bins = np.concatenate((self._num_bins, self._num_bins))
        self._rooms[at], self._slack[at], self._num_bins[at] = room, (room / self._capacities).sum(), num_bins
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
        values, which = np.unique(column, return_inverse=True)
        pairs = zip(values.tolist(), np.bincount(which, counts).astype(np.int64).tolist(), strict=True)
        bounds.append(bound_of_pairs([pair for pair in pairs if pair[0]][::-1], capacity, int(counts.sum())))
    return max(bounds)
