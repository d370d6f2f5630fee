"""How grpc.aio's accepting loop asks for requests: without losing memory, and its end is noticed.

Owns a task factory for the loop that serves. Leaves listening again to `listening`, and requests that outlive their
cancellation to `shielded`.

Without it, one request from anybody whose path is no UTF-8 ends gRPC's accepting loop: the port is closed while the
process lives, so trainers cannot open or resume a stream until somebody restarts the server. gRPC also cancels what it
asked its core for, and frees memory that the core writes to a moment later: the process died of it in one case of
twenty. Here that memory stays until the core has written to it.

It knows gRPC's private coroutines by name. Where a release renames them, gRPC does as it does by itself.
"""

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import Any, TypeAlias

from packhorse.server.base.shielded import Shielded

_LOG = logging.getLogger(__name__)

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
            return Shielded(loop, coroutine)
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if name == _ACCEPTING:
            self._newest = task
        elif name == _CLOSING:
            task.add_done_callback(_know_of_its_error)
        return task

    async def ended(self) -> BaseException | None:
        """Waits until the server that was started last accepts no more; returns the error that ended it, if one did.

        Waits for ever where this release of gRPC has no coroutine of the name that is looked for.
        """
        if self._newest is None:
            _LOG.warning(
                "grpcio accepts requests by other means than this release of packhorse knows: a malformed request may "
                "close the port; upgrade packhorse, or install the grpcio of its constraints.txt"
            )
            await asyncio.get_running_loop().create_future()
        assert self._newest is not None
        await asyncio.wait((self._newest,))
        return None if self._newest.cancelled() else self._newest.exception()


def _know_of_its_error(task: "asyncio.Task[Any]") -> None:
    """Keeps asyncio from logging a trace of an error nobody asked for; whoever waits for the task still gets it."""
    if not task.cancelled():
        task.exception()
