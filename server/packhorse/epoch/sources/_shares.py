"""Exact proportions: what is due to each component after so many positions of a stage, in fractions.

Owns the weights of a stage as integers, and who leaves when. Which position a component gets is `_splits`'s.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm


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
