"""Workarounds for faults of gRPC; the option `workarounds` turns all of them off.

Owns the task factory that keeps gRPC's memory alive, writing a message to its end, and listening again after gRPC's
accepting loop has ended. Files that shrink are in `shrinking_files`. DESIGN.md says who would notice the absence of
each.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, cast

import grpc

from packhorse.server.base.log_limit import LineLimit

_LOG = logging.getLogger(__name__)

_Coroutine: TypeAlias = Coroutine[Any, Any, Any] | Generator[Any, None, Any]

_REQUESTING = frozenset({"_request_call", "_request_registered_call"})
"""Names of grpc.aio's coroutines that wait for the next call. gRPC's core writes the call into their memory."""

_ACCEPTING = "_server_main_loop"
"""Name of grpc.aio's coroutine that accepts requests. It ends when its server ends, or by an error."""

_CLOSING = "shutdown"
"""Name of grpc.aio's coroutine that ends a server. If the accepting one ended by an error, it raises the same error."""

CLIENT_LEFT = "ExecuteBatchError"
"""Name of the error that gRPC raises from a write whose client has just left."""

_CANCELLED_SECONDS = 10.0
"""How long a call whose client has left waits until gRPC cancels it, which takes a moment."""

_AGAIN_SECONDS = 10.0
"""How long we try to listen again while the address is in use: gRPC closes its old socket soon after its loop ended."""

_RETRY_SECONDS = 0.01
"""Pause between two attempts to listen again."""


class Shielded(asyncio.Future[Any]):
    """Runs a coroutine of gRPC to its end, even if this future is cancelled, because gRPC's core uses its memory.

    It runs without a task: a task would need one more pass of the event loop to begin, and one to end.

    Args:
        loop: the event loop in which the coroutine runs.
        coroutine: one that waits only for futures.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: _Coroutine) -> None:
        super().__init__(loop=loop)
        self._coroutine = coroutine
        self._continue()

    def set_name(self, name: object) -> None:
        """Does nothing: Python 3.12 and 3.13 name whatever a task factory returns."""

    def _continue(self, _: object = None) -> None:
        """Runs the coroutine until it waits for its next future, or ends."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            if not self.done():
                self.set_result(end.value)
        except Exception as error:
            if not self.done():
                self.set_exception(error)
        else:
            awaited._asyncio_future_blocking = False  # tells the future, as a task would, that we wait for it
            awaited.add_done_callback(self._continue)  # so the future, which the core holds, keeps us and the memory


async def write_to_its_end(message: Any, context: Any) -> None:
    """Writes a message; if the client has left, waits until gRPC cancels the call.

    gRPC frees the memory of a write only if the write is awaited to its end. Otherwise each stream whose client leaves
    costs 150 bytes for good: if the write was cancelled, if it began after the client had left, or if a status follows
    a failed write.
    """
    if not context.cancelled():
        try:
            await Shielded(asyncio.get_running_loop(), context.write(message))
        except Exception as error:
            if type(error).__name__ != CLIENT_LEFT:
                raise
        else:
            return
    await asyncio.sleep(_CANCELLED_SECONDS)
    raise asyncio.CancelledError


class Accepting:
    """The task factory of a loop that serves with grpc.aio.

    Example:
        >>> async def serve():
        ...     accepting = Accepting()
        ...     asyncio.get_running_loop().set_task_factory(accepting.make_task)
        ...     ...  # starts a grpc.aio.Server
        ...     await accepting.ended()  # it takes no new calls; those that it has continue
    """

    def __init__(self) -> None:
        self._accepting_task: asyncio.Task[Any] | None = None  # of the server that was started last

    def make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: _Coroutine, **options: Any
    ) -> "asyncio.Future[Any]":
        """Makes a task, as `loop.create_task` does; makes a `Shielded` of a coroutine that waits for a call."""
        name = getattr(coroutine, "__name__", None)
        if name in _REQUESTING:
            return Shielded(loop, coroutine)
        # A task takes generators only before Python 3.12, and gRPC has none.
        task = asyncio.Task(cast("Coroutine[Any, Any, Any]", coroutine), loop=loop, **options)
        if name == _ACCEPTING:
            self._accepting_task = task
        elif name == _CLOSING:
            # The error is looked at, so that asyncio does not log its trace.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def ended(self) -> BaseException | None:
        """Waits until the server that was started last accepts no more; returns the error that ended it, if one did.

        Waits for ever if this release of gRPC has no coroutine of the expected name.
        """
        if self._accepting_task is None:
            _LOG.warning(
                "this release of packhorse does not know how grpcio accepts requests: a malformed request may close "
                "the port; upgrade packhorse, or install the grpcio of its constraints.txt"
            )
            await asyncio.get_running_loop().create_future()
        assert self._accepting_task is not None
        await asyncio.wait((self._accepting_task,))
        return None if self._accepting_task.cancelled() else self._accepting_task.exception()


class Listening:
    """Listens at an address, and listens again after a malformed request has ended gRPC's server.

    A request whose path is not UTF-8 ends the loop in which grpc.aio accepts requests, and closes the socket. Another
    server replaces it at once: open streams continue at the old one, and new calls reach the new one.

    Args:
        make: returns a server that is bound to an address and not started, and the real address; raises OSError if the
            address cannot be listened on.
        address: HOST:PORT, whose port may be 0, or unix:PATH.
        accepting: the task factory of the running loop; None to leave gRPC as it is.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self, make: Callable[[str], tuple[grpc.aio.Server, str]], address: str, accepting: Accepting | None
    ) -> None:
        if not _LOG.filters:  # each malformed request of a stranger logs a line
            _LOG.addFilter(LineLimit())
        self._make = make
        self._accepting = accepting
        self._server, self.address = make(address)
        self._older: dict[grpc.aio.Server, asyncio.Future[bool]] = {}  # each done when its streams have ended

    async def begin(self) -> None:
        """Accepts calls from now on."""
        await self._server.start()

    async def keep_listening(self) -> None:
        """Listens again whenever gRPC stops. Never returns.

        Raises:
            OSError: the address cannot be listened on any more.
        """
        if self._accepting is None:
            await asyncio.get_running_loop().create_future()
        assert self._accepting is not None
        while True:
            error = await self._accepting.ended()
            _LOG.error("gRPC stopped listening (%r), as it does after a malformed request; listening again", error)
            self._keep_until_over(self._server)
            self._server = await self._bound_again()
            await self.begin()

    async def stop(self, grace_seconds: float | None) -> None:
        """Ends all servers, after a grace period for their calls; None ends them at once."""
        await asyncio.gather(*(server.stop(grace_seconds) for server in (self._server, *self._older)))

    async def _bound_again(self) -> grpc.aio.Server:
        """Returns a new server at the address; tries until gRPC has closed the old socket, for _AGAIN_SECONDS."""
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                server, _ = self._make(self.address)
                return server
            except OSError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    def _keep_until_over(self, server: grpc.aio.Server) -> None:
        """Keeps a server that accepts no more until its streams have ended."""

        def forget(over: "asyncio.Future[bool]") -> None:
            if not over.cancelled():
                over.exception()  # looked at, so that asyncio does not log it: `keep_listening` has
            del self._older[server]

        self._older[server] = asyncio.ensure_future(server.wait_for_termination())
        self._older[server].add_done_callback(forget)
