"""A port that is listened to for as long as the process serves, whatever ends gRPC's own accepting loop.

Owns gRPC's servers: one that accepts, and those before it whose streams are still open. Leaves what they answer to
`app`, and how the end of an accepting loop is noticed to `accepting`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

import grpc

from packhorse.server.base.logs import Sparing
from packhorse.server.service.accepting import Accepting

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
