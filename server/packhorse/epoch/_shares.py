"""Exact proportions: how many bins each component gets of every block, in integers of any size.

Owns the weights of a stage as integers, and the length of its blocks. Which of a block's positions a component gets is
`_dealing`'s.
"""

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST_BLOCK = 1024
MOST_BLOCK = 1 << 16
"""Positions of a block, at most; the last of an epoch is less than twice as long."""


class Shares:
    """The weights of C components, and where each of them leaves.

    Of the first n positions the components up to d get ⌊U_d(n)⌋, where U_d(n) is what is due to them together; so
    component d gets ⌊U_d(n)⌋ - ⌊U_{d-1}(n)⌋. That differs from its due by less than one, and all together get n.
    A block is so long that every component is due at least once in it, hence none ever gets less than nothing.
    Where weights are small integers its length is a multiple of their sum, and every block is exact.

    A component to which its most has become due leaves, and what is due to the others grows by their weights from
    there on. Who has given the smallest multiple of its weight leaves first, so the order is known beforehand.

    Example:
        >>> shares = Shares([Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)])
        >>> shares.block, shares.before(1000).tolist()
        (1030, [700, 200, 100])
        >>> Shares(shares.parts, np.array([500, 200, 200])).before(800).tolist()
        [500, 200, 100]

    Args:
        weights: at least 0, one of them above.
        most: what each gives before it leaves, at least 0; None where none leaves: int64 [C]. Positions are below the
            sum over those that have a weight.

    The caller refuses weights that are due less than once in `MOST_BLOCK` positions.
    """

    def __init__(self, weights: Sequence[Fraction | int], most: NDArray[np.int64] | None = None) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        parts = [int(weight * scale) for weight in weights]
        divisor = gcd(*parts)
        self.parts = tuple(part // divisor for part in parts)
        self.whole = sum(self.parts)
        self._parts = np.array(self.parts, dtype=np.int64 if self.whole < 2**31 else object)
        self._up_to = np.array([0, *accumulate(self.parts)], dtype=self._parts.dtype)
        if self.whole <= MOST_BLOCK:
            self.block = -(-_LEAST_BLOCK // self.whole) * self.whole
        else:
            self.block = max(_LEAST_BLOCK, 1 << (self.due_once - 1).bit_length())
        self._first, self._before_first = 0, np.zeros(1 + len(parts), dtype=np.int64)
        self._most = most
        self._leaves_as = np.zeros(len(parts), dtype=np.int64)  # which of those with a weight, from the first to leave
        self._leave_at: list[int] = []
        if most is not None:
            self._order(most)

    def _order(self, most: NDArray[np.int64]) -> None:
        """Finds who leaves when."""
        weighing = [component for component, part in enumerate(self.parts) if part]
        order = sorted(weighing, key=lambda component: Fraction(int(most[component]), self.parts[component]))
        self._leaves_as[:] = len(order)
        self._leaves_as[order] = np.arange(len(order))
        given, whole = 0, self.whole
        for component in order:
            num, part = int(most[component]), self.parts[component]
            self._leave_at.append(given - (-num * whole // part))
            given, whole = given + num, whole - part

    def beginning_at(self, first: int) -> "Shares":
        """Returns what these deal from their position `first` on, counted from there. Nobody leaves.

        What is due is counted on, not rounded anew: so a component gets its due of everything, in however many pieces
        it is dealt. Pieces begin where this one does, or are long enough that each component is due in them once.

        Example:
            >>> shares = Shares([2, 3])
            >>> [shares.beginning_at(first).before(1).tolist() for first in range(5)]
            [[0, 1], [0, 1], [1, 0], [0, 1], [1, 0]]
        """
        shares = copy(self)
        shares._first = first % self.whole  # positions repeat after that
        shares._before_first = _due(self._up_to, shares._first, self.whole)
        return shares

    @property
    def due_once(self) -> int:
        """The least number of positions in which each component is due at least once."""
        return -(-self.whole // min(part for part in self.parts if part))

    def up_to(self, n: int) -> NDArray[np.int64]:
        """Returns how many of the first n positions the components before each one get, and n: int64 [C + 1]."""
        num_left = bisect_right(self._leave_at, n)
        if self._most is None or not num_left:
            return _due(self._up_to, self._first + n, self.whole) - self._before_first
        has_left = self._leaves_as < num_left
        given = np.concatenate(([0], np.cumsum(np.where(has_left, self._most, 0))))
        up_to = np.concatenate(([0], np.cumsum(np.where(has_left, 0, self._parts))))
        return given + _due(up_to, n - int(given[-1]), max(int(up_to[-1]), 1))

    def up_to_each(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Returns `up_to` of K numbers, ascending: int64 [K, C + 1]."""
        last = self._first + numbers[-1]
        if (self._leave_at and last >= self._leave_at[0]) or self._parts.dtype == object or last >= 2**32:
            return np.stack([self.up_to(n) for n in numbers])
        return self._up_to * (self._first + np.array(numbers))[:, np.newaxis] // self.whole - self._before_first

    def before(self, n: int) -> NDArray[np.int64]:
        """Returns how many of the first n positions each component gets: int64 [C]."""
        return np.diff(self.up_to(n))

    def before_of(self, component: int, n: int) -> int:
        """Returns how many of the first n positions one component gets."""
        return int(self.before(n)[component])

    def block_of(self, component: int, number: int, num_blocks: int) -> int:
        """Returns the block, of so many, that holds the bin which a component gets as its `number`-th, from 0."""
        blocks = range(num_blocks)
        return bisect_right(blocks, number, key=lambda block: self.before_of(component, block * self.block)) - 1


def _due(up_to: NDArray[Any], n: int, whole: int) -> NDArray[np.int64]:
    """Returns ⌊up_to · n / whole⌋, exactly."""
    if n >= 2**32:
        up_to = up_to.astype(object)
    return (up_to * n // whole).astype(np.int64)
