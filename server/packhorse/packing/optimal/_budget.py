"""How long a search for a better plan may go on.

Owns the account that such a search is charged to. What ends a search is the work that it did, counted in steps, so that
it ends at the same point on every machine and in every run, and two equal inputs give equal plans. The clock is a
safety net for machines that are far too slow for that work.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfWorkError(Exception):
    """The work that was allowed is done; the same in every run."""


class OutOfTimeError(Exception):
    """The clock ran out before the work was done; another run may get further."""


class Budget:
    """Steps that are left, of about a nanosecond each, and a deadline.

    Attributes:
        left: steps not spent yet.
        reserved: of these, the steps that are kept for later; spending stops there.

    Args:
        steps: how many may be spent in all.
        seconds: until the deadline.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self.left = steps
        self.reserved = 0
        self._deadline = time.monotonic() + seconds

    def spend(self, steps: int) -> None:
        """Charges steps; call it before or after the work, at least every few tenths of a second.

        Raises:
            OutOfWorkError: nothing is left but what is reserved.
            OutOfTimeError: the deadline passed.
        """
        self.left -= steps
        if self.left <= self.reserved:
            raise OutOfWorkError
        if self.seconds_left() <= 0:
            raise OutOfTimeError

    @contextmanager
    def lent(self, share: float) -> "Iterator[Budget]":
        """Gives a share of what is left to a search of its own, and takes back what that leaves."""
        part = Budget(int(share * self.left), self.seconds_left())
        self.left -= part.left
        try:
            yield part
        finally:
            self.left += max(part.left, 0)

    def seconds_left(self) -> float:
        """Seconds until the deadline; not above 0 when it has passed."""
        return self._deadline - time.monotonic()
