"""A port that is listened to for as long as the process serves, whatever ends gRPC's own accepting loop.

Owns gRPC's servers: one that accepts, and those before it whose streams are still open. Leaves what they answer to
`app`, and how the end of an accepting loop is noticed to `listening`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

import grpc

from packhorse.server.base.logs import Sparing
from packhorse.server.base.shielded import Shielded

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


_LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 10.0
"""How long an address may be in use before it is given up: gRPC closes the old socket a moment after its loop ended."""

_Make: TypeAlias = Callable[[str], tuple[grpc.aio.Server, str]]


class Listening:
    """Listens at an address, and listens again where a malformed request ended gRPC's server.

    A request whose path is no UTF-8 ends the loop in which grpc.aio accepts requests, and closes the socket. Another
    server replaces it at once: streams that are open go on at the old one, and new calls come to the new one.

    Args:
        make: returns a server that is bound to an address and not started, and the real address; raises OSError where
            it cannot be listened on.
        address: whose port may be 0.
        accepting: the task factory of the running loop.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(self, make: _Make, address: str, accepting: Accepting) -> None:
        if not _LOG.filters:  # a stranger's request is enough for a line
            _LOG.addFilter(Sparing())
        self._make = make
        self._accepting = accepting
        self._server, self.address = make(address)
        self._older: dict[grpc.aio.Server, asyncio.Future[bool]] = {}  # with what is done when their streams have ended

    async def begin(self) -> None:
        """Accepts calls from now on."""
        await self._server.start()

    async def go_on(self) -> None:
        """Listens again whenever gRPC stops; ends only by an OSError, where the address cannot be had any more."""
        while True:
            error = await self._accepting.ended()
            _LOG.error("gRPC stopped listening (%r), as it does after a malformed request; listening again", error)
            self._let_go(self._server)
            self._server = await self._bound_again()
            await self.begin()

    async def stop(self, grace_seconds: float | None) -> None:
        """Ends all servers: their calls have so long to end; None ends them at once."""
        await asyncio.gather(*(server.stop(grace_seconds) for server in (self._server, *self._older)))

    async def _bound_again(self) -> grpc.aio.Server:
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            try:
                return self._make(self.address)[0]
            except OSError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.01)

    def _let_go(self, server: grpc.aio.Server) -> None:
        """Keeps a server that accepts no more until its streams have ended."""

        def forget(over: "asyncio.Future[bool]") -> None:
            if not over.cancelled():
                over.exception()  # the one that ended its loop
            del self._older[server]

        self._older[server] = asyncio.ensure_future(server.wait_for_termination())
        self._older[server].add_done_callback(forget)
