"""Groups with resources, such as image tiles: counting their sizes, and planning the classes of these sizes.

A group's size is a row of d numbers: its tokens, then its amount of each resource with a cap. Owns the counts and what
the manifest says of resources. Leaves the columns of resources to `input`, and making classes of sizes, and packing
them, to `packhorse.packing`.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import ResourceRecord
from packhorse.packing import (
    PackingPlan,
    PackingStats,
    SizeClasses,
    Template,
    distinct_rows,
    pack_classes,
    vector_bound,
)
from packhorse.prepare.input import MOST_COST, Resource

_SIZES_KEPT = 1 << 21
"""Sizes that are collected before equal ones are joined."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupClasses:
    """The rule from a group's size to its class, as tasks need it; small when pickled.

    Example:
        >>> classes = SizeClasses.of(np.array([[20, 0], [700, 3]]), np.array([1, 1]), np.array([1024, 4]))
        >>> group_classes = GroupClasses(classes=classes, is_capped=np.array([True, False]))
        >>> group_classes.numbers_of(np.array([700]), np.array([[3, 9]])).tolist()
        [2]
    """

    classes: SizeClasses
    """The classes of sizes."""
    is_capped: NDArray[np.bool_]
    """Whether each of the k resources has a cap, and so is part of a size: bool [k]."""

    def numbers_of(self, rooms: NDArray[np.int64], amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of each group's class, from 1: int64 [G].

        Args:
            rooms: the groups' rooms in tokens: int64 [G].
            amounts: the groups' amounts of each resource: int64 [G, k].
        """
        return self.classes.numbers_of(_sizes_of(rooms, amounts, self.is_capped))


def _sizes_of(rooms: NDArray[np.int64], amounts: NDArray[np.int64], is_capped: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns groups' sizes, int64 [G, d]: tokens, then amounts of the resources with a cap."""
    return np.concatenate((rooms[:, None], amounts[:, is_capped]), axis=1)


class SizeCounts:
    """Counts groups by size, and plans the classes of the sizes.

    Memory grows with the number of distinct sizes.

    Args:
        resources: the k resources, with or without a cap.
        max_seq_len: a bin's capacity in tokens.
    """

    def __init__(self, resources: tuple[Resource, ...], max_seq_len: int) -> None:
        self.resources = resources
        self._is_capped = np.array([each.cap is not None for each in resources], dtype=np.bool_)
        caps = [each.cap for each in resources if each.cap is not None]
        self.capacities = np.array([max_seq_len, *caps], dtype=np.int64)
        """A bin's capacities, max_seq_len and the caps: int64 [d]."""
        self._sizes = np.empty((0, len(self.capacities)), dtype=np.int64)
        """Sizes that occurred: int64 [n, d]; a size may be there several times until `_join`."""
        self._counts, self._most_members = np.empty((2, 0), dtype=np.int64)
        """For each size, the number of its groups, and the most members in one of them: int64 [n] both."""
        self._join_above = _SIZES_KEPT
        """Number of sizes above which equal ones are joined."""
        self._totals, self._largest = np.zeros((2, len(resources)), dtype=np.int64)
        """For each resource, the sum over groups, and the largest amount of one group: int64 [k] both."""

    def add(self, sizes: NDArray[np.int64], amounts: NDArray[np.int64], num_members: NDArray[np.int64]) -> None:
        """Counts groups.

        Args:
            sizes: the groups' sizes: int64 [G, d].
            amounts: their amounts of each resource: int64 [G, k].
            num_members: number of sequences in each group: int64 [G].
        """
        if not len(sizes):
            return
        self._totals += amounts.sum(axis=0)
        self._largest = np.maximum(self._largest, amounts.max(axis=0))
        self._sizes = np.concatenate((self._sizes, sizes))
        self._counts = np.concatenate((self._counts, np.ones(len(sizes), dtype=np.int64)))
        self._most_members = np.concatenate((self._most_members, num_members))
        if len(self._sizes) > self._join_above:
            self._join()
            self._join_above = max(_SIZES_KEPT, 2 * len(self._sizes))

    def sizes_of(self, rooms: NDArray[np.int64], amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns groups' sizes: int64 [G, d]. The arguments are those of `GroupClasses.numbers_of`."""
        return _sizes_of(rooms, amounts, self._is_capped)

    @cached_property
    def classes(self) -> SizeClasses:
        """The classes of all sizes. To be used after all groups are counted."""
        self._join()
        return SizeClasses.of(self._sizes, self._counts, self.capacities)

    @property
    def group_classes(self) -> GroupClasses:
        """The rule from a group's size to its class, for tasks."""
        return GroupClasses(classes=self.classes, is_capped=self._is_capped)

    def plan(self) -> PackingPlan:
        """Returns a plan whose templates are of numbers of classes."""
        begin = perf_counter()
        numbers = self.classes.numbers_of(self._sizes)
        counts = np.zeros(len(self.classes.sizes) + 1, dtype=np.int64)  # by number of a class, which begin with 1
        np.add.at(counts, numbers, self._counts)
        return PackingPlan(
            templates=pack_classes(self.classes.sizes, counts[1:], self.capacities),
            max_seq_len=int(self.capacities[0]),
            lower_bound=vector_bound(self._sizes, self._counts, self.capacities),
            algorithm="best-fit",
            seconds=perf_counter() - begin,
        )

    def stats(self, plan: PackingPlan) -> PackingStats:
        """Returns how full of tokens the bins of a plan are; percentiles count each class's rounded tokens."""
        class_tokens = self.classes.sizes[:, 0]
        templates: Counter[Template] = Counter()
        for template, multiplicity in plan.templates.items():  # of numbers of classes, from 1
            templates[tuple(class_tokens[np.array(template) - 1].tolist())] += multiplicity
        stats = PackingStats.from_templates(templates, plan.max_seq_len)
        return stats.with_tokens(stats.total_tokens - self.rounding_tokens(), plan.lower_bound)

    def records(self) -> tuple[ResourceRecord, ...]:
        """Returns what the manifest says of each resource; a ValueError if one costs too much."""
        totals = zip(self.resources, self._totals.tolist(), self._largest.tolist(), strict=True)
        records = tuple(
            ResourceRecord(name=each.name, column=each.column, cap=each.cap, total=total, most=most, cost=each.cost)
            for each, total, most in totals
        )
        for each in records:
            most_in_bin = min(each.cap or each.total, each.total)
            most_cost = most_in_bin * each.cost
            if most_cost > MOST_COST:
                raise ValueError(
                    f"the cost of resource {each.name!r} makes a bin cost up to {most_cost}, over 2^42: give a smaller "
                    "cost, or a cap"
                )
        return records

    def most_members(self) -> dict[int, int]:
        """Returns number of a class → most members in one of its groups; number 0, which no class has, → 0."""
        most = np.zeros(len(self.classes.sizes) + 1, dtype=np.int64)
        np.maximum.at(most, self.classes.numbers_of(self._sizes), self._most_members)
        return dict(enumerate(most.tolist()))

    def rounding_tokens(self) -> int:
        """Returns the tokens by which classes are larger than the groups in them, summed over all groups."""
        class_tokens = self.classes.sizes[self.classes.numbers_of(self._sizes) - 1, 0]
        return int((class_tokens - self._sizes[:, 0]) @ self._counts)

    def _join(self) -> None:
        """Joins equal sizes, so that each is held once."""
        first, size_of_row = distinct_rows(self._sizes)
        most = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(most, size_of_row, self._most_members)
        counts = np.zeros(len(first), dtype=np.int64)
        np.add.at(counts, size_of_row, self._counts)
        self._sizes, self._counts, self._most_members = self._sizes[first], counts, most
