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

    It counts the time of the thread that calls it, so it is made and restarted in the thread that runs the slice: after
    a `yield` that may be another one.

    Attributes:
        used_seconds: processor time of all slices that were found to be over.

    Example:
        >>> pace = Pace()
        >>> for item in items:
        ...     work_on(item)
        ...     if pace.is_over():
        ...         yield 0  # bytes of memory that the work needs from now on
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
        """Returns whether the slice should end now. If so, counts its time: call `restart` before this again."""
        if time.monotonic() < self._end:
            return False
        self.used_seconds += time.thread_time() - self._begin
        return True


def finish(slices: TimeSlices[_Result]) -> _Result:
    """Runs all slices one after the other, whatever memory they need, and returns the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _Result = end.value
            return result
