"""Streams that are being opened: what others send next waits until all of them have a first block.

Owns the counting and the waiting; leaves the order of work in a lane to `threads`, and streams to the servicer.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

OPENING_HEAD_START_SECONDS = 1.0
"""The first block of a stream goes before the next blocks of others, unless they have waited so much longer: a trainer
has its next block at hand, and nothing before the first."""


class Openings:
    """Counts streams from their request until their first block is made. Used from one event loop only.

    A lane alone cannot give way to openings: while the event loop has a thousand requests to take in, the lane is idle
    again and again, and would make blocks that then stand before the openings in the loop.

    Example:
        >>> openings = Openings()
        >>> with openings.one() as opened:
        ...     print(openings.are_over)
        ...     opened()
        ...     print(openings.are_over)
        False
        True
    """

    def __init__(self) -> None:
        self._num_opening = 0
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def one(self) -> "Iterator[_Opening]":
        """Counts a stream until what this gives is called, which is when its first block is made, or until it ends."""
        opening = _Opening(self)
        self._num_opening += 1
        try:
            yield opening
        finally:
            opening()

    @property
    def are_over(self) -> bool:
        """Whether nobody is opening."""
        return not self._num_opening

    def over(self) -> "asyncio.Future[None]":
        """Returns what is done when nobody is opening, or after OPENING_HEAD_START_SECONDS."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        loop.call_later(OPENING_HEAD_START_SECONDS, _end, future)
        if self.are_over:
            self._release()
        return future

    def _opened(self) -> None:
        self._num_opening -= 1
        if self.are_over:
            self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _end(future)


class _Opening:
    """One stream's; ends once, however often it is called."""

    def __init__(self, openings: Openings) -> None:
        self._openings: Openings | None = openings

    def __call__(self) -> None:
        openings, self._openings = self._openings, None
        if openings is not None:
            openings._opened()


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
