"""Long work cut into time slices, so that other requests run between them and abandoned work ends soon.

Owns what a slice is and how long it lasts. Leaves the threads that run slices to `lanes`.
"""

import time
from collections.abc import Generator
from typing import TypeAlias, TypeVar

_Result = TypeVar("_Result")

TimeSlices: TypeAlias = Generator[int, None, _Result]
"""A generator that does long work. After each slice it yields how many bytes of memory it needs from then on, including
those of its answer; at its end it returns the result."""

SLICE_SECONDS = 0.02
"""How long a slice lasts, unless a single kernel within it takes longer."""


class Pace:
    """Says when a slice has lasted long enough; the first one begins with this object.

    Attributes:
        used_seconds: processor time of all slices that are over.

    Example:
        >>> pace = Pace()
        >>> for item in items:
        ...     work_on(item)
        ...     if pace.is_over():
        ...         yield 0
        ...         pace.restart()
    """

    def __init__(self) -> None:
        self.used_seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Begins the next slice."""
        self._end = time.monotonic() + SLICE_SECONDS
        self._begin = time.thread_time()

    def is_over(self) -> bool:
        """Whether the slice should end now."""
        if time.monotonic() < self._end:
            return False
        self.used_seconds += time.thread_time() - self._begin
        return True


def finish(slices: TimeSlices[_Result]) -> _Result:
    """Runs all slices one after the other, and returns the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _Result = end.value
            return result
