"""Classes of items with similar sizes, so that a plan handles a few thousand of them instead of single items.

Owns how sizes are rounded up to classes, and the distinct rows of a table. Leaves packing classes to `vectors`.

Shape letters: n items, d dimensions (the first is tokens), m distinct sizes, C classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_CLASSES = 8192
"""Most classes by default. More take longer to plan and hardly save a bin."""

_MOST_KEYS = 2**62
"""Most combinations of values that `distinct_rows` writes as one int64 each."""
_MOST_WASTE = 0.005
"""Share of all bins that rounding sizes up may waste, so that classes have several items, and epochs differ."""


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
            most: the most classes; up to 2^(d - 1) are allowed in any case, because a size of 0 never shares a class.
            items_per_class: wanted mean number of items in a class; 1 for a class for each distinct size, if
                nothing is exchanged.
        """
        quanta = np.ones(len(capacities), dtype=np.int64)
        tops, _ = _tops(values, quanta)
        few = min(most, int(counts.sum()) // items_per_class)
        allowed = _MOST_WASTE * (counts @ values / capacities).max()
        while len(tops) > few and (quanta < capacities).any():
            least_waste = np.inf
            for dimension in np.flatnonzero(quanta < capacities).tolist():
                doubled = quanta.copy()
                doubled[dimension] *= 2
                larger, which = _tops(values, doubled)
                waste = (counts @ (larger[which] - values) / capacities).max()
                if waste < least_waste:
                    least_waste, next_quanta, next_tops = waste, doubled, larger
            if len(tops) <= most and least_waste > allowed:
                break
            quanta, tops = next_quanta, next_tops
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
