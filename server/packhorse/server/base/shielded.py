"""A coroutine of gRPC's that goes on where whoever waits for it is cancelled: the core uses its memory until its end.

Owns running it without a task. Leaves which coroutines need it to `listening` and `calls`.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Shielded(asyncio.Future[Any]):
    """Runs a coroutine at once, and goes on where what it waits for is done, also when this is cancelled.

    A task would take a turn of the event loop to begin and one to end.

    Args:
        loop: in which it runs.
        coroutine: waits for nothing but futures.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any]
    ) -> None:
        super().__init__(loop=loop)
        self._coroutine = coroutine
        self._go_on()

    def set_name(self, name: object) -> None:
        """Does nothing: Python 3.12 and 3.13 name whatever a task factory returns."""

    def _go_on(self, _: object = None) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            if not self.done():
                self.set_result(end.value)
        except Exception as error:
            if not self.done():
                self.set_exception(error)
        else:
            awaited._asyncio_future_blocking = False  # as a task says that it has taken the future
            awaited.add_done_callback(self._go_on)  # the core holds the future, and it this and the memory
