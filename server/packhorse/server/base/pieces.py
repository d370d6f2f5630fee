"""Work cut into pieces, so that long requests take turns with others and end soon after their caller has left.

Owns what a piece is and how long it lasts; leaves where pieces run to `lanes`.
"""

import time
from collections.abc import Generator
from typing import TypeAlias, TypeVar

_Result = TypeVar("_Result")

Pieces: TypeAlias = Generator[int, None, _Result]
"""Work that yields after every piece: the bytes that it needs from then on, its answer included. Returns the result."""

PIECE_SECONDS = 0.02
"""How long a piece lasts, unless a single kernel within it takes longer."""


class Pace:
    """Says when a piece has lasted long enough; it begins when it is made.

    Attributes:
        used_seconds: of a processor, by all pieces that are over.

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
        """Begins the next piece."""
        self._end = time.monotonic() + PIECE_SECONDS
        self._begin = time.thread_time()

    def is_over(self) -> bool:
        """Whether the piece should end now."""
        if time.monotonic() < self._end:
            return False
        self.used_seconds += time.thread_time() - self._begin
        return True


def finish(pieces: Pieces[_Result]) -> _Result:
    """Does all pieces at once, and returns the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: _Result = end.value
            return result
