"""Streams that open in a wave, as a run's ranks do: the next block of each waits until the wave is over.

Owns when that is; leaves blocks to the servicer, and the order of work in a lane to `threads`.

A lane alone cannot let openings go first. The event loop takes in one request after the other, and meanwhile the lane
is idle again and again: it would make second and third blocks, and the loop would send them before it takes in the next
request. Over connections that have been read from fast, streams would so take megabytes each while others have nothing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_SECONDS = 0.05
"""A wave is over when no stream has opened or got its first block for so long. Streams of a wave come a millisecond or
two apart, but where the processors are busy with other things, some come later."""

MOST_SECONDS = 2.0
"""A wave lasts no longer: a thousand streams open in about a second on two cores. Where streams come and go without
end, nobody waits until it has been quiet."""


MANY = 32
"""So many streams make a wave, those not counted that have left again: who only comes and goes holds up nobody."""


class Openings:
    """Knows how streams follow each other. Used from one event loop only.

    Example:
        >>> async def open_many():
        ...     openings, streams = Openings(), ExitStack()
        ...     streams.enter_context(openings.stream())
        ...     print(openings.are_many())
        ...     for _ in range(MANY):
        ...         streams.enter_context(openings.stream())
        ...     print(openings.are_many())
        ...     await openings.over()
        ...     print(openings.are_many())
        >>> from contextlib import ExitStack
        >>> asyncio.run(open_many())
        False
        True
        False
    """

    def __init__(self) -> None:
        self._began = self._newest = float("-inf")
        self._number = self._num_open = 0  # of the wave
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def stream(self) -> Iterator[int]:
        """Notes that a stream opens, and when it ends; gives the number of its wave."""
        now = asyncio.get_running_loop().time()
        if now - self._newest >= QUIET_SECONDS:
            self._number, self._num_open, self._began = self._number + 1, 0, now
        self._newest, number = now, self._number
        self._num_open += 1
        try:
            yield number
        finally:
            self._num_open -= number == self._number

    def got_first(self) -> None:
        """Notes that a stream has its first block: a wave is not over as long as streams get theirs."""
        if self.are_many():
            self._newest = asyncio.get_running_loop().time()

    def are_many(self) -> bool:
        """Whether streams open in a wave now."""
        now = asyncio.get_running_loop().time()
        is_wave = now - self._newest < QUIET_SECONDS and now - self._began < MOST_SECONDS
        return is_wave and self._num_open >= MANY

    def hold_up(self, number: int) -> bool:
        """Whether the next block of a stream waits: it came with this wave, which is not over."""
        return number == self._number and self.are_many()

    async def over(self) -> None:
        """Waits until the wave is over."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        if not self._waiting:
            loop.call_later(QUIET_SECONDS, self._look)
        self._waiting.append(waiting)
        await waiting

    def _look(self) -> None:
        """Lets go on who waits, if the wave is over; else comes back."""
        if self.are_many():
            asyncio.get_running_loop().call_later(QUIET_SECONDS, self._look)
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
