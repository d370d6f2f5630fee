"""Exact proportions: how many bins each component gets of every block, in integers of any size.

Owns the weights of a stage as integers, and the length of its blocks. Which of a block's positions a component gets is
`_dealing`'s.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

_LEAST_BLOCK = 1024
MOST_BLOCK = 1 << 16
"""Positions of a block, at most; the last of an epoch is less than twice as long."""


class Shares:
    """The weights of C components.

    Of the first n positions the components up to d get ⌊V_d · n⌋, where V_d is their share of all weights together; so
    component d gets ⌊V_d · n⌋ - ⌊V_{d-1} · n⌋. That differs from its due by less than one, and all together get n.
    A block is so long that every component is due at least once in it, hence none ever gets less than nothing.
    Where weights are small integers its length is a multiple of their sum, and every block is exact.

    Example:
        >>> shares = Shares([Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)])
        >>> shares.block, shares.before(1000).tolist()
        (1030, [700, 200, 100])

    Args:
        weights: at least 0, one of them above.

    The caller refuses weights that are due less than once in `MOST_BLOCK` positions.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        parts = [int(weight * scale) for weight in weights]
        divisor = gcd(*parts)
        self.parts = tuple(part // divisor for part in parts)
        self.whole = sum(self.parts)
        self._up_to = (0, *accumulate(self.parts))
        self._up_to_array = np.array(self._up_to, dtype=np.int64) if self.whole < 2**31 else None
        if self.whole <= MOST_BLOCK:
            self.block = -(-_LEAST_BLOCK // self.whole) * self.whole
        else:
            due_once = -(-self.whole // min(part for part in self.parts if part))
            self.block = max(_LEAST_BLOCK, 1 << (due_once - 1).bit_length())

    def up_to(self, n: int) -> NDArray[np.int64]:
        """Returns how many of the first n positions the components before each one get, and n: int64 [C + 1]."""
        if self._up_to_array is not None and n < 2**32:
            return self._up_to_array * n // self.whole
        return np.array([up_to * n // self.whole for up_to in self._up_to], dtype=np.int64)

    def before(self, n: int) -> NDArray[np.int64]:
        """Returns how many of the first n positions each component gets: int64 [C]."""
        return np.diff(self.up_to(n))

    def before_of(self, component: int, n: int) -> int:
        """Returns how many of the first n positions one component gets."""
        return self._up_to[component + 1] * n // self.whole - self._up_to[component] * n // self.whole

    def block_of(self, component: int, number: int, num_blocks: int) -> int:
        """Returns the block, of so many, that holds the bin which a component gets as its `number`-th, from 0."""
        blocks = range(num_blocks)
        return bisect_right(blocks, number, key=lambda block: self.before_of(component, block * self.block)) - 1
