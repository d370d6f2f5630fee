"""Resources: counting what groups take of a bin beside tokens, such as the tiles or patches of their images.

Leaves what a user says of a resource to `input`, and classes of sizes, and packing them, to `packhorse.packing`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import ResourceRecord
from packhorse.packing import SizeClasses, distinct_rows, vector_bound
from packhorse.prepare.input import Resource

_ROWS_KEPT = 1 << 21


def sizes_of(rooms: NDArray[np.int64], amounts: NDArray[np.int64], is_capped: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the sizes by which groups are planned: int64 [G, d].

    Example:
        >>> sizes_of(np.array([700]), np.array([[3, 9]]), np.array([True, False])).tolist()
        [[700, 3]]

    Args:
        rooms: of groups, in tokens: int64 [G].
        amounts: of each resource that they take: int64 [G, k].
        is_capped: whether a bin has a budget of each: bool [k].
    """
    return np.concatenate((rooms[:, None], amounts[:, is_capped]), axis=1)


class SizeCounts:
    """How many groups have which sizes: tokens, and each resource with a cap.

    Memory grows with the number of distinct sizes.
    """

    def __init__(self, resources: tuple[Resource, ...], max_seq_len: int) -> None:
        self.resources = resources
        self.is_capped = np.array([each.cap is not None for each in resources], dtype=np.bool_)
        caps = [each.cap for each in resources if each.cap is not None]
        self.capacities = np.array([max_seq_len, *caps], dtype=np.int64)
        """Of a bin: int64 [d]."""
        self._values = np.empty((0, len(self.capacities)), dtype=np.int64)
        self._counts, self._most = np.empty((2, 0), dtype=np.int64)
        self._most_kept = _ROWS_KEPT
        self._totals, self._largest = np.zeros((2, len(resources)), dtype=np.int64)

    def add(self, sizes: NDArray[np.int64], amounts: NDArray[np.int64], members: NDArray[np.int64]) -> None:
        """Counts groups.

        Args:
            sizes: int64 [G, d].
            amounts: of each resource: int64 [G, k].
            members: of each group: int64 [G].
        """
        if not len(sizes):
            return
        self._totals += amounts.sum(axis=0)
        self._largest = np.maximum(self._largest, amounts.max(axis=0))
        self._values = np.concatenate((self._values, sizes))
        self._counts = np.concatenate((self._counts, np.ones(len(sizes), dtype=np.int64)))
        self._most = np.concatenate((self._most, members))
        if len(self._values) > self._most_kept:
            self._join()
            self._most_kept = max(_ROWS_KEPT, 2 * len(self._values))

    def classes(self) -> SizeClasses:
        """Returns the classes of all sizes."""
        self._join()
        return SizeClasses.of(self._values, self._counts, self.capacities)

    def bound(self) -> int:
        """Returns how many bins every plan has at least."""
        self._join()
        return vector_bound(self._values, self._counts, self.capacities)

    def most_members(self, classes: SizeClasses) -> NDArray[np.int64]:
        """Returns the members of the largest group of each class, by its number: int64 [C + 1]."""
        most = np.zeros(len(classes.sizes) + 1, dtype=np.int64)
        np.maximum.at(most, classes.numbers_of(self._values), self._most)
        return most

    def rounding_tokens(self, classes: SizeClasses) -> int:
        """Returns by how many tokens classes are larger than their groups."""
        tops = classes.sizes[classes.numbers_of(self._values) - 1, 0]
        return int((tops - self._values[:, 0]) @ self._counts)

    def records(self) -> tuple[ResourceRecord, ...]:
        """Returns what the manifest says of each resource."""
        facts = zip(self.resources, self._totals.tolist(), self._largest.tolist(), strict=True)
        return tuple(
            ResourceRecord(name=each.name, column=each.column, cap=each.cap, total=total, most=most, cost=each.cost)
            for each, total, most in facts
        )

    def _join(self) -> None:
        """Keeps distinct sizes only."""
        first, which = distinct_rows(self._values)
        most = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(most, which, self._most)
        counts = np.zeros(len(first), dtype=np.int64)
        np.add.at(counts, which, self._counts)
        self._values, self._counts, self._most = self._values[first], counts, most
