"""The budget of a search: an amount of work, counted in steps, and a deadline.

Leaves the work itself, which charges the budget, to `_master`, `_pricing`, `_rounding` and `repacking`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf


class OutOfWorkError(Exception):
    """The budget's steps are spent; the same search ends here each time."""


class OutOfTimeError(Exception):
    """The deadline passed before the steps were spent; another attempt may get further."""


class Budget:
    """The work that a search may do, in steps of about a nanosecond, and a deadline.

    Counted steps end a search at the same point on every machine of a kind, so that equal inputs give equal plans. The
    deadline is a safety net for machines that are far too slow.

    Args:
        steps: number of steps.
        seconds: time from now until the deadline.

    Attributes:
        left: steps that are not spent yet.
        reserved: number of these that are set aside for later work; `spend` raises when only they are left.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self.left = steps
        self.reserved = 0
        self._steps = steps
        self._begin = time.monotonic()
        self._deadline = self._begin + seconds

    def spend(self, steps: int) -> None:
        """Takes steps off the budget. A search calls it every few tenths of a second, before or after the work.

        Raises:
            OutOfWorkError: only reserved steps are left.
            OutOfTimeError: the deadline passed.
        """
        self.left -= steps
        if self.left <= self.reserved:
            raise OutOfWorkError
        if self.seconds_left() <= 0:
            raise OutOfTimeError

    @contextmanager
    def lent(self, steps: int) -> "Iterator[Budget]":
        """Yields a second budget with at most `steps` of the steps left; takes back those that it does not spend."""
        part = Budget(min(steps, self.left), self.seconds_left())
        self.left -= part.left
        try:
            yield part
        finally:
            self.left += max(part.left, 0)

    def seconds_of_all(self) -> float:
        """Returns the seconds for all steps at the speed so far; infinite until a hundredth of them is spent."""
        done = self._steps - self.left
        return (time.monotonic() - self._begin) * self._steps / done if 100 * done >= self._steps else inf

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline; 0 or less once it has passed."""
        return self._deadline - time.monotonic()
