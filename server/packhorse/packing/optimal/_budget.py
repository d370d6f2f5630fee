"""The budget of a search: counted work, which ends it at the same point everywhere, and a clock as safety net.

Leaves what the work is to `_master`, `_pricing`, `_rounding` and `repacking`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf


class OutOfWorkError(Exception):
    """The work allowed is done, at the same point each time."""


class OutOfTimeError(Exception):
    """The clock ran out before the work was done; another attempt may get further."""


class Budget:
    """The work that a search may do, in steps of about a nanosecond, and a deadline in seconds.

    Counted work ends a search at the same point on machines of a kind, so that equal inputs give equal plans. The clock
    is a safety net for machines that are far too slow.

    Attributes:
        left: steps not spent yet.
        reserved: of these, the steps kept for later; spending stops there.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self.left = steps
        self.reserved = 0
        self._steps = steps
        self._begin = time.monotonic()
        self._deadline = self._begin + seconds

    def spend(self, steps: int) -> None:
        """Charges steps, before or after the work, at least every few tenths of a second.

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
        """Gives some of the steps left to a search of its own, and takes back those that it leaves."""
        part = Budget(min(steps, self.left), self.seconds_left())
        self.left -= part.left
        try:
            yield part
        finally:
            self.left += max(part.left, 0)

    def seconds_of_all(self) -> float:
        """Returns how long all the work takes at the speed so far; infinite before a hundredth of it is done."""
        done = self._steps - self.left
        return (time.monotonic() - self._begin) * self._steps / done if 100 * done >= self._steps else inf

    def seconds_left(self) -> float:
        """Seconds until the deadline; not above 0 when it has passed."""
        return self._deadline - time.monotonic()
