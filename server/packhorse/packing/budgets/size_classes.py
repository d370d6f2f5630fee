"""Classes of items with similar sizes, so that a plan handles a few thousand of them instead of single items.

Owns how sizes are rounded up to classes. Leaves packing classes to `vectors`.

Shape letters: n items, d dimensions (the first is tokens), m distinct sizes, C classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.budgets.distinct_rows import distinct_rows

MOST_CLASSES = 8192
"""Most classes by default. More take longer to plan and hardly save a bin."""

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
            items_per_class: mean number of items that a class should have. 1, for items that are not exchanged, gives
                each distinct size its own class, unless there are more than `most`.
        """
        quanta = np.ones(len(capacities), dtype=np.int64)
        sizes, _ = _largest_in_cells(values, quanta)
        num_wanted = min(most, int(counts.sum()) // items_per_class)
        most_waste_bins = _MOST_WASTE * (counts @ values / capacities).max()
        while len(sizes) > num_wanted and (quanta < capacities).any():
            least_waste_bins = np.inf
            for dimension in np.flatnonzero(quanta < capacities).tolist():
                doubled = quanta.copy()
                doubled[dimension] *= 2
                larger_sizes, cell_of = _largest_in_cells(values, doubled)
                waste_bins = (counts @ (larger_sizes[cell_of] - values) / capacities).max()
                if waste_bins < least_waste_bins:
                    least_waste_bins, next_quanta, next_sizes = waste_bins, doubled, larger_sizes
            if len(sizes) <= most and least_waste_bins > most_waste_bins:
                break
            quanta, sizes = next_quanta, next_sizes
        return cls(sizes=sizes, quanta=quanta)

    def numbers_of(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the class number of each item, counted from 1: int64 [n].

        Args:
            sizes: sizes of items, which were among the `values` of `of`: int64 [n, d].
        """
        _, ranks = distinct_rows(-(-np.concatenate((self.sizes, sizes)) // self.quanta))
        return ranks[len(self.sizes) :] + 1  # the first C rows are all classes, in order, so ranks are classes


def _largest_in_cells(
    values: NDArray[np.int64], quanta: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the largest sizes in each cell, int64 [C, d], and the index of each value's cell, int64 [m]."""
    first, cell_of = distinct_rows(-(-values // quanta))
    largest = np.zeros((len(first), values.shape[1]), dtype=np.int64)
    np.maximum.at(largest, cell_of, values)
    return largest, cell_of
