"""What threads have made, on its way into an event loop: one wake-up brings all that is there by then.

Owns the way from a future of a thread to one of the loop; leaves the threads to `threads`.

`asyncio.wrap_future` wakes the loop once for each result, by a byte through a socket. Where a thousand streams open at
once, results come faster than the loop turns, and one byte does for many of them.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Arrivals:
    """Results on their way into one event loop.

    Example:
        >>> async def add():
        ...     threads, arrivals = Threads("example", 1), Arrivals()
        ...     return await arrivals.awaited(threads.submit(sum, [1, 2]))
        >>> asyncio.run(add())
        3
    """

    def __init__(self) -> None:
        self._arrived: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_called = False  # the loop will look

    def awaited(self, future: "Future[_Result]") -> "asyncio.Future[_Result]":
        """Returns what the loop can wait for; where that is cancelled, so is the work, unless it has begun."""
        loop = asyncio.get_running_loop()
        awaited: asyncio.Future[_Result] = loop.create_future()
        awaited.add_done_callback(lambda done: future.cancel() if done.cancelled() else None)
        future.add_done_callback(partial(self._arrive, loop, awaited))
        return awaited

    def _arrive(self, loop: asyncio.AbstractEventLoop, awaited: "asyncio.Future[Any]", future: "Future[Any]") -> None:
        """Runs in whichever thread has ended or dropped the work."""
        self._arrived.append((awaited, future))
        if not self._is_called and not loop.is_closed():
            self._is_called = True
            loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._is_called = False  # before anything is taken: whoever comes later calls again
        while self._arrived:
            awaited, future = self._arrived.popleft()
            if awaited.done():
                continue
            if future.cancelled():
                awaited.cancel()
            elif (error := future.exception()) is not None:
                awaited.set_exception(error)
            else:
                awaited.set_result(future.result())
