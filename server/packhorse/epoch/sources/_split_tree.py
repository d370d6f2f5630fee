"""Positions split between components, so that each stays near its exact share after every position.

Components are split in a Huffman tree, which merges the two nodes of least weight again and again; the cells of a side
are again split. If the number of a node's cells is off by e, a side with share p is off by less than 1 + p·e. An inner
node's p is at most 2/3, since its sibling is at least as heavy as either of its own sides. So two components are off by
less than 1, three by less than 2, four by less than 3, and any number by less than 4.

Owns `SplitTree`: how many of the first n positions each component gets, and which component gets each of the next ones.
Leaves a single split, and what debts and caps are, to `_split`; remembering positions to `_component_order`, and what
is due to each component to `_dues`.
"""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_or, kernel_part
from packhorse.epoch.permutation import GOLDEN, mix
from packhorse.epoch.sources._split import (
    NO_CAP,
    Node,
    Progress,
    Split,
    State,
    apply_caps,
    mark_lessers,
    progress,
    split_of,
)

_U1 = np.uint64(1)


class _Step(NamedTuple):
    """A step down the tree: from a split to one of its sides."""

    split: int
    """Number of the split."""
    is_greater: bool
    """Whether the step is to the greater's side."""


class SplitTree:
    """C components that share positions [0, ∞), or as many as their caps allow.

    Args:
        weights: weight of each component, at least 0.
        debts: debt of each component, in `DEBT_UNITS`; may be negative.
        key: decides which cells the lesser of each split gets.
        caps: the most bins that each component gives; None for no limit. A component with neither weight nor debt has a
            cap of 0.
    """

    def __init__(
        self, weights: Sequence[int], debts: Sequence[int], key: int, caps: Sequence[int] | None = None
    ) -> None:
        self._num_components = len(weights)
        self._splits: list[Split] = []
        self._root = self._grow(weights, debts, caps)  # number of a split, or ~component if there is only one
        self._paths = _paths(self._splits, self._root)
        # Of each split, (lesser, greater) and (part, whole), int64 [splits, 2], and its key. Children come before it.
        shape = (len(self._splits), 2)
        self._children = np.array([(each.lesser, each.greater) for each in self._splits], np.int64).reshape(shape)
        self._units = np.array([(each.part, each.whole) for each in self._splits], np.int64).reshape(shape)
        self._keys = np.empty(len(self._splits), dtype=np.uint64)
        _fill_keys(np.uint64(key), self._keys)

    def _grow(self, weights: Sequence[int], debts: Sequence[int], caps: Sequence[int] | None) -> int:
        """Makes the splits of the Huffman tree, and returns its root."""
        caps = [NO_CAP if weight else 0 for weight in weights] if caps is None else caps
        components = [c for c, cap in enumerate(caps) if cap]
        heap = [Node(weights[c], order, ~c, debts[c], caps[c]) for order, c in enumerate(components)]
        heapq.heapify(heap)
        order = len(heap)
        while len(heap) > 1:
            lesser, greater = heapq.heappop(heap), heapq.heappop(heap)
            self._splits.append(split_of(lesser, greater))
            merged = Node(
                weight=lesser.weight + greater.weight,
                order=order,
                number=len(self._splits) - 1,
                debt=lesser.debt + greater.debt,
                cap=min(lesser.cap + greater.cap, NO_CAP),
            )
            heapq.heappush(heap, merged)
            order += 1
        return heap[0].number

    def before(self, n: int) -> list[int]:
        """Returns the number of the first n positions that each component gets; n may be of any size."""
        if not n:
            return [0] * self._num_components
        counts, _ = self._walk(n)
        return counts

    def before_of(self, component: int, n: int) -> int:
        """Returns the number of the first n positions that one component gets."""
        if component not in self._paths:  # its cap is 0
            return 0
        for step in self._paths[component]:
            reached = progress(self._splits[step.split], self._keys[step.split], n)
            n = reached.num_greater if step.is_greater else reached.num_lesser
        return n

    def deal(self, first: int, components_out: NDArray[np.int32], numbers_out: NDArray[np.uint32]) -> list[int]:
        """Deals N positions, from `first` on, to components; returns `before(first)`.

        Args:
            first: the first of the positions.
            components_out: receives the component of each position: int32 [N].
            numbers_out: receives, for each position, how many of those before it its component has: uint32 [N].
        """
        counts, reached = self._walk(first)
        states = np.array([each.state for each in reached], dtype=np.int64).reshape(len(reached), len(State._fields))
        strata = np.array([each.stratum for each in reached], dtype=np.uint64)
        rests = [  # what its caps leave to the lesser and the greater of each split
            [_rest(cap, num) for cap, num in zip(split.caps, (each.num_lesser, each.num_greater), strict=True)]
            for split, each in zip(self._splits, reached, strict=True)
        ]
        _deal(
            np.int64(self._root),
            self._children,
            self._units,
            self._keys,
            states,
            strata,
            np.array(rests, dtype=np.int64).reshape(len(rests), 2),
            components_out,
            numbers_out,
        )
        return counts

    def _walk(self, n: int) -> tuple[list[int], list[Progress]]:
        """Follows n positions down the tree; returns the number that each component gets, and each split's progress."""
        counts = [0] * self._num_components
        reached: dict[int, Progress] = {}
        pending = [(self._root, n)]
        while pending:
            node, m = pending.pop()
            if node < 0:
                counts[~node] = m
                continue
            split = self._splits[node]
            reached[node] = progress(split, self._keys[node], m)
            pending += [(split.lesser, reached[node].num_lesser), (split.greater, reached[node].num_greater)]
        return counts, [reached[node] for node in range(len(self._splits))]


def _rest(cap: int, num: int) -> int:
    """Returns what a cap leaves to a side that has given `num` bins."""
    return NO_CAP if cap >= NO_CAP else cap - num


def _paths(splits: Sequence[Split], root: int) -> dict[int, tuple[_Step, ...]]:
    """Returns the path from the root to every component that has one."""
    paths = {}
    pending: list[tuple[int, tuple[_Step, ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if node < 0:
            paths[~node] = path
        else:
            pending.append((splits[node].lesser, (*path, _Step(node, is_greater=False))))
            pending.append((splits[node].greater, (*path, _Step(node, is_greater=True))))
    return paths


@kernel_or()
def _fill_keys(key: Any, keys_out: Any) -> None:
    """Writes a key for each split: uint64 [splits]."""
    for i in range(len(keys_out)):
        keys_out[i] = mix(key ^ mix(np.uint64(i) + GOLDEN))


@kernel_or()
def _deal(
    root: Any,
    children: Any,
    units: Any,
    keys: Any,
    states: Any,
    strata: Any,
    rests: Any,
    components_out: Any,
    numbers_out: Any,
) -> None:
    """Does the work of `SplitTree.deal`.

    From the root down, every split partitions its positions, in their order: first the lesser's, then the greater's.

    Args:
        root: number of a split, or ~component.
        children: (lesser, greater) of each split: int64 [splits, 2].
        units: (part, whole) of each split: int64 [splits, 2].
        keys: key of each split: uint64 [splits].
        states: `Progress.state` of each split: int64 [splits, 7].
        strata: `Progress.stratum` of each split: uint64 [splits].
        rests: what its caps leave to the lesser and the greater of each split: int64 [splits, 2].
        components_out: as for `SplitTree.deal`.
        numbers_out: as for `SplitTree.deal`.
    """
    num = len(components_out)
    positions, buffer = np.empty(num, np.uint32), np.empty(num, np.uint32)
    for i in range(num):
        positions[i] = i
    is_lesser_buffer = np.empty(num, np.uint8)
    begins, ends = np.zeros(len(children), np.int64), np.zeros(len(children), np.int64)
    _give(root, 0, num, positions, begins, ends, components_out, numbers_out)
    for node in range(len(children) - 1, -1, -1):  # from the root down: it has the highest number
        begin, end = begins[node], ends[node]
        if begin == end:
            continue
        is_lesser = is_lesser_buffer[: end - begin]
        mark_lessers(states[node], strata[node], units[node, 0], units[node, 1], keys[node], is_lesser)
        if min(rests[node, 0], rests[node, 1]) < end - begin:
            apply_caps(rests[node, 0], rests[node, 1], is_lesser)
        middle = _partition(positions, begin, end, is_lesser, buffer)
        _give(children[node, 0], begin, middle, positions, begins, ends, components_out, numbers_out)
        _give(children[node, 1], middle, end, positions, begins, ends, components_out, numbers_out)


@kernel_part
def _partition(positions: Any, begin: Any, end: Any, is_lesser: Any, buffer: Any) -> Any:
    """Moves the lesser's positions of a split to the front of its range, and returns where the greater's begin."""
    num_lesser, num_greater = np.uint64(0), np.uint64(0)
    for i in range(end - begin):
        position, side = positions[begin + i], np.uint64(is_lesser[i])
        positions[np.uint64(begin) + num_lesser] = position  # overwritten by the next one, unless it is the lesser's
        buffer[num_greater] = position
        num_lesser += side
        num_greater += _U1 - side
    middle = begin + np.int64(num_lesser)
    for i in range(end - middle):
        positions[middle + i] = buffer[i]
    return middle


@kernel_part
def _give(
    node: Any, begin: Any, end: Any, positions: Any, begins: Any, ends: Any, components_out: Any, numbers_out: Any
) -> None:
    """Gives the positions with indices [begin, end) to a node: a component, or a split that is dealt later."""
    if node >= 0:
        begins[node], ends[node] = begin, end
        return
    for i in range(begin, end):
        position = positions[i]
        components_out[position], numbers_out[position] = ~node, i - begin
