"""How grpc.aio's accepting loop asks for requests: in few turns of the event loop, and without losing memory.

Owns a task factory for the loop that serves; leaves listening again to `listening`.

grpc.aio asks its core for the next request, and gives it memory to write that to. Where grpc.aio's own loop ends by an
error, as after a path that is no UTF-8, it cancels what it asked for, and frees memory that the core writes to a moment
later: the process died of it in one case of twenty. Here that memory stays until the core has written to it.

One request is accepted after the other, and each takes some turns of the event loop, which are long where many streams
move. So what asks is no task, which would take a turn to begin and one to end.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeAlias

_Coroutine: TypeAlias = Coroutine[Any, Any, Any] | Generator[Any, None, Any]

_ASKING = frozenset({"_request_call", "_request_registered_call"})
"""grpc.aio's coroutines whose memory the core writes to."""

_ACCEPTING = "_server_main_loop"
"""grpc.aio's coroutine that accepts requests; it ends where its server ends, or by an error."""

_CLOSING = "shutdown"
"""grpc.aio's coroutine that ends a server. Where the accepting one ended by an error, it ends by the same."""


class Accepting:
    """The task factory of a loop that serves with grpc.aio.

    Example:
        >>> async def serve():
        ...     accepting = Accepting()
        ...     asyncio.get_running_loop().set_task_factory(accepting.make_task)
        ...     ...  # starts a grpc.aio.Server
        ...     await accepting.ended()  # it takes no new calls; those that it has go on
    """

    def __init__(self) -> None:
        self._newest: asyncio.Task[Any] | None = None

    def make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: _Coroutine, **options: Any
    ) -> "asyncio.Future[Any]":
        """Makes a task, as `loop.create_task` does, but for what asks for a request."""
        name = getattr(coroutine, "__name__", None)
        if name in _ASKING:
            return _Asked(loop, coroutine)
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if name == _ACCEPTING:
            self._newest = task
        elif name == _CLOSING:
            task.add_done_callback(_know_of_its_error)
        return task

    async def ended(self) -> BaseException | None:
        """Waits until the server that was started last accepts no more; returns the error that ended it, if one did."""
        assert self._newest is not None, "no server was started"
        await asyncio.wait((self._newest,))
        return None if self._newest.cancelled() else self._newest.exception()


def _know_of_its_error(task: "asyncio.Task[Any]") -> None:
    """Keeps asyncio from logging a trace of an error nobody asked for; whoever waits for the task still gets it."""
    if not task.cancelled():
        task.exception()


class _Asked(asyncio.Future[Any]):
    """Runs a coroutine at once, and goes on where what it waits for is done, also when this is cancelled.

    Args:
        loop: in which it runs.
        coroutine: waits for nothing but futures.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: _Coroutine) -> None:
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
