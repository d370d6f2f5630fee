"""What is due to each component of a stage after any number of draws, if shares are kept exactly.

A draw is here, as in `mixture`, some consecutive bins of one component. Owns `Dues`. Leaves the weights of a stage to
`stages`, and the draws that components really get to `mixture`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm


class Dues:
    """The exact number of draws due to each of C components after any number of a stage's draws.

    With limits, a component leaves when as many draws as its limit have become due to it. From there on the others
    share draws by their weights. Components leave in ascending order of limit / weight, so the order is known from the
    start.

    Example:
        >>> dues = Dues([Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)])
        >>> dues.parts, [str(due) for due in dues.due(5)]
        ((7, 2, 1), ['7/2', '1', '1/2'])
        >>> [str(due) for due in Dues(dues.parts, [500, 200, 200]).due(800)]
        ['500', '200', '100']

    Args:
        weights: a weight for each component, at least 0; one is above 0.
        limits: for each component, the draws that become due to it before it leaves, at least 0; None for no limits.

    Attributes:
        parts: the weights as integers without a common divisor.
        whole: the sum of these.
    """

    def __init__(self, weights: Sequence[Fraction | int], limits: Sequence[Fraction | int] | None = None) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        parts = [int(weight * scale) for weight in weights]
        divisor = gcd(*parts)
        self.parts = tuple(part // divisor for part in parts)
        self.whole = sum(self.parts)
        self.leave_at: list[Fraction] = []
        """Draws of the stage after which components leave, ascending."""
        self._leaving: list[int] = []  # the components that leave then
        self._limits = limits
        if limits is None:
            return
        # A time t is the moment at which t · part draws are due to every component that has not left.
        times = {c: Fraction(limits[c]) / part for c, part in enumerate(self.parts) if part}
        self._leaving = sorted(times, key=times.__getitem__)
        due_to_gone, whole = Fraction(0), self.whole
        for c in self._leaving:
            due_to_gone, whole = due_to_gone + limits[c], whole - self.parts[c]
            self.leave_at.append(due_to_gone + times[c] * whole)

    def due(self, n: int) -> list[Fraction]:
        """Returns the draws due to each component after n draws of the stage."""
        gone, weights = self._at(n)
        whole = max(sum(weights), 1)  # the sum is 0 once all that have a weight have left
        rest = Fraction(n) - sum(gone.values())
        return [gone[c] if c in gone else rest * weight / whole for c, weight in enumerate(weights)]

    def weights_at(self, n: int) -> list[int]:
        """Returns the integer weights after n draws of the stage; 0 for components that have left."""
        _, weights = self._at(n)
        return weights

    def _at(self, n: int) -> tuple[dict[int, Fraction], list[int]]:
        """Returns, after n draws, those due to each component that has left, and the weights of all components."""
        if self._limits is None:
            return {}, list(self.parts)
        gone = {c: Fraction(self._limits[c]) for c in self._leaving[: bisect_right(self.leave_at, n)]}
        return gone, [0 if c in gone else part for c, part in enumerate(self.parts)]
