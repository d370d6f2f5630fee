"""Streams that open in a wave, as a run's ranks do: the second block of each waits until the wave is over.

Owns when that is; leaves blocks to the servicer, and the order of work in a lane to `threads`.

A lane alone cannot let openings go first. The event loop takes in one request after the other, and meanwhile the lane
is idle again and again: it would make second and third blocks, and the loop would send them before it takes in the next
request. Over connections that have been read from fast, streams would so take megabytes each while others have nothing.
"""

import asyncio
from collections import deque

QUIET_SECONDS = 0.05
"""A wave is over when no stream has opened for so long. Streams of a wave come a millisecond or two apart, but where
the processors are busy with other things, some come later."""

MOST_SECONDS = 2.0
"""No stream waits longer, however many open: a thousand take about a second on two cores."""


class Openings:
    """Knows how streams follow each other. Used from one event loop only.

    Example:
        >>> async def open_two():
        ...     openings = Openings()
        ...     openings.note()
        ...     print(openings.are_many())
        ...     openings.note()
        ...     print(openings.are_many())
        ...     await openings.over()
        ...     print(openings.are_many())
        >>> asyncio.run(open_two())
        False
        True
        False
    """

    def __init__(self) -> None:
        self._newest = float("-inf")
        self._is_wave = False
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()

    def note(self) -> None:
        """Notes that a stream opens."""
        now = asyncio.get_running_loop().time()
        self._is_wave = now - self._newest < QUIET_SECONDS
        self._newest = now

    def are_many(self) -> bool:
        """Whether streams open in a wave now: a single one makes none."""
        return self._is_wave and not self._is_quiet()

    async def over(self) -> None:
        """Waits until the wave is over, but no longer than MOST_SECONDS."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        if not self._waiting:
            loop.call_later(QUIET_SECONDS, self._look)
        self._waiting.append((loop.time() + MOST_SECONDS, waiting))
        await waiting

    def _is_quiet(self) -> bool:
        return asyncio.get_running_loop().time() - self._newest >= QUIET_SECONDS

    def _look(self) -> None:
        """Lets go on who has waited for long enough; comes back as long as somebody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting and (self._is_quiet() or self._waiting[0][0] <= loop.time()):
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if self._waiting:
            loop.call_later(QUIET_SECONDS, self._look)
