"""One stretch of a mixture's positions, dealt to its components chunk by chunk.

Owns which component a position is of, and how many of that component's bins come before it; and the way back. Knows no
component: what their bins are is `mixture`'s.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.epoch.sources._splits import Splits, deal

_CHUNK = 1 << 14
"""Positions that are dealt together."""

_BYTES_PER_POSITION = 8

_MOST_BYTES = 4 << 20
"""What the chunks used last take together, where there is more than one."""


class _Chunk(NamedTuple):
    """Positions that were dealt together."""

    before: list[int]
    """How many bins each component has given before."""
    components: NDArray[np.int32]
    """Which component each of its positions is of."""
    numbers: NDArray[np.uint32]
    """How many of the component's bins come before it in the chunk."""


class Dealing:
    """Positions dealt to C components, from the first of them on without an end. Safe to be used by many threads.

    A component's bins come in their own order. What a position gets does not depend on what is asked for.

    Args:
        splits: who gets which; positions are below the sum of its caps.
        length: number of positions that are asked for, at most; None where there is no end.
    """

    def __init__(self, splits: Splits, length: int | None = None) -> None:
        self._splits = splits
        self._length = length
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    @property
    def most_bytes(self) -> int:
        """What it remembers, at most."""
        whole = _MOST_BYTES + _BYTES_PER_POSITION * _CHUNK
        return whole if self._length is None else min(_BYTES_PER_POSITION * self._length, whole)

    def dealt(
        self, first: int, before: Sequence[int], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and how many of its bins come between `first` and there.

        Args:
            first: from where positions are counted.
            before: `taken(first)`.
            positions: int64 [N], at least 0.
        """
        components = np.empty(len(positions), dtype=np.int32)
        numbers = np.empty(len(positions), dtype=np.int64)
        done = 0
        while done < len(positions):
            number = (first + int(positions[done])) // _CHUNK
            chunk = self._chunk(number)
            base = np.array([a - b for a, b in zip(chunk.before, before, strict=True)], dtype=np.int64)
            begin = number * _CHUNK - first
            done = _pick(chunk.components, chunk.numbers, base, begin, positions, done, components, numbers)
        return components, numbers

    def taken(self, num: int) -> list[int]:
        """Returns how many of the first `num` positions each component gets; `num` may be of any size."""
        return self._splits.before(num)

    def find(
        self, component: int, first: int, before: Sequence[int], end: int, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of a component's bins, which are before `end`; undoes `dealt`: int64 [N]."""
        positions = np.empty(len(numbers), dtype=np.int64)
        chunks = range(first // _CHUNK, -(-end // _CHUNK))
        for i, number in enumerate(numbers.tolist()):
            wanted = number + before[component]
            at = bisect_right(chunks, wanted, key=lambda c: self._splits.before_of(component, c * _CHUNK)) - 1
            chunk = self._chunk(chunks[at])
            inside = np.flatnonzero(chunk.components == component)[wanted - chunk.before[component]]
            positions[i] = chunks[at] * _CHUNK + int(inside) - first
        return positions

    def _chunk(self, number: int) -> _Chunk:
        with self._lock:
            if number not in self._chunks:
                self._chunks[number] = self._deal(number)
                while len(self._chunks) > max(2, _MOST_BYTES // (_BYTES_PER_POSITION * _CHUNK)):
                    self._chunks.popitem(last=False)
            self._chunks.move_to_end(number)
            return self._chunks[number]

    def _deal(self, number: int) -> _Chunk:
        splits, first = self._splits, number * _CHUNK
        length = _CHUNK if self._length is None else min(_CHUNK, self._length - first)
        before, states, strata, rests = splits.state_at(first)
        components, numbers = np.empty(length, dtype=np.int32), np.empty(length, dtype=np.uint32)
        deal(splits.root, splits.children, splits.units, splits.keys, states, strata, rests, components, numbers)
        return _Chunk(before, components, numbers)


@kernel
def _pick(
    components: Any,
    numbers: Any,
    base: Any,
    first: Any,
    positions: Any,
    begin: Any,
    components_out: Any,
    numbers_out: Any,
) -> Any:
    """Looks positions up in a chunk from `begin` on, as far as they lie in it; returns the first that does not.

    Args:
        components: of the chunk.
        numbers: of the chunk.
        base: what is added to them, for each component: int64 [C].
        first: the chunk's first position.
        positions: int64 [N].
        begin: which of them is looked up first.
        components_out: int32 [N], written.
        numbers_out: int64 [N], written.
    """
    for i in range(begin, len(positions)):
        inside = np.uint64(positions[i] - first)  # far above, where it is below 0
        if inside >= np.uint64(len(components)):
            return i
        component = np.uint64(components[inside])  # unsigned: it is not checked for being below 0
        components_out[i] = component
        numbers_out[i] = base[component] + np.int64(numbers[inside])
    return len(positions)


class Shares:
    """The weights of C components, and where each of them leaves.

    A component to which its most has become due leaves, and what is due to the others grows by their weights from
    there on. Who reaches its most at the smallest multiple of its weight leaves first: the order is known beforehand.

    Example:
        >>> shares = Shares([Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)])
        >>> shares.parts, [str(due) for due in shares.due(5)]
        ((7, 2, 1), ['7/2', '1', '1/2'])
        >>> [str(due) for due in Shares(shares.parts, [500, 200, 200]).due(800)]
        ['500', '200', '100']

    Args:
        weights: at least 0, one of them above.
        most: what becomes due to each before it leaves, at least 0; None where none leaves.
    """

    def __init__(self, weights: Sequence[Fraction | int], most: Sequence[Fraction | int] | None = None) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        parts = [int(weight * scale) for weight in weights]
        divisor = gcd(*parts)
        self.parts = tuple(part // divisor for part in parts)
        self.whole = sum(self.parts)
        self.leave_at: list[Fraction] = []
        """Positions of the stage at which components leave, ascending."""
        self._leaving: list[int] = []  # which, in this order
        self._most = most
        if most is not None:
            self._order(most)

    def _order(self, most: Sequence[Fraction | int]) -> None:
        """Finds who leaves when."""
        weighing = [component for component, part in enumerate(self.parts) if part]
        times = {component: Fraction(most[component]) / self.parts[component] for component in weighing}
        self._leaving = sorted(weighing, key=times.__getitem__)
        given, whole = Fraction(0), self.whole
        for component in self._leaving:
            given, whole = given + most[component], whole - self.parts[component]
            self.leave_at.append(given + times[component] * whole)

    def due(self, n: int) -> list[Fraction]:
        """Returns what is due to each component after n positions of the stage."""
        gone, weights = self._at(n)
        whole, rest = max(sum(weights), 1), Fraction(n) - sum(gone.values())
        return [gone[c] if c in gone else rest * weight / whole for c, weight in enumerate(weights)]

    def weights_at(self, n: int) -> list[int]:
        """Returns the weights after n positions of the stage, 0 for those that have left."""
        return self._at(n)[1]

    def _at(self, n: int) -> tuple[dict[int, Fraction], list[int]]:
        """Returns what those that have left after n positions had become due, and all weights."""
        if self._most is None:
            return {}, list(self.parts)
        gone = {c: Fraction(self._most[c]) for c in self._leaving[: bisect_right(self.leave_at, n)]}
        return gone, [0 if c in gone else part for c, part in enumerate(self.parts)]
