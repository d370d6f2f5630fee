"""Requests on their way in: how many there may be at once, how long one may take, and what large ones take in memory.

Owns the interceptor that reads a request before anything else looks at it. Leaves what answers take to `memory`.

gRPC by itself reads whatever is sent: a thousand requests of 4 MiB that never end would take 4 GiB, and as many whole
ones several times that, before any limit of ours is asked. An operator whose port strangers can reach would notice its
absence: the container runs out of memory, and every stream ends.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from packhorse.server.base.faults import ServiceError, invalid_field, too_many_requests
from packhorse.server.base.status import abort
from packhorse.server.lanes.memory import DECODED_BYTES_PER_BYTE, MemoryBudget, OutOfMemoryBudgetError

MOST_AT_ONCE = 16
"""Requests of one method that gRPC reads at once, and as many more that are read here. Others wait unread: of each, 64
KiB may have arrived."""

RECEIVE_SECONDS = 10.0
"""How long others wait for a request that does not come."""

SMALL_REQUEST_BYTES = 64 << 10
"""Smaller ones do not count: no stream needs more, and the limit of streams bounds theirs."""

MEMORY_BYTES = 256 << 20
"""What larger requests take together until they are answered. A budget of its own, though the servicer counts a request
again with its answer: in one for both, requests that arrive could leave no room to answer any of them."""

_PAUSES = 4
"""After a larger one was decoded, the next waits so many times as long: it keeps the event loop and the interpreter,
and 300,000 ranges in 4 MiB take 12 ms."""

MEMORY_WAIT_SECONDS = 1.0
"""How long a request waits for memory before it is refused."""


class _Arriving:
    """The requests of one method that are on their way."""

    def __init__(self) -> None:
        self.num_read_by_grpc = 0
        self.permits = asyncio.Semaphore(MOST_AT_ONCE)
        """For those that are read here."""


class Receiving(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets gRPC read requests as long as few are on their way, which is faster, and reads the others itself, in turns.

    To be the outermost interceptor, as it calls what the others made of a method. A method with a stream of requests
    reads them by itself.

    Args:
        on_refusal: called with every refusal.
    """

    def __init__(self, on_refusal: Callable[[ServiceError], None]) -> None:
        self._on_refusal = on_refusal
        self._memory = MemoryBudget(MEMORY_BYTES, MEMORY_WAIT_SECONDS)
        self._arriving: defaultdict[str, _Arriving] = defaultdict(_Arriving)
        self._decoding = asyncio.Lock()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, with a request that was received within the limits."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        arriving = self._arriving[handler_call_details.method]
        if arriving.num_read_by_grpc < MOST_AT_ONCE:
            return self._read_by_grpc(handler, arriving)
        return self._read_here(handler, arriving)

    def _read_by_grpc(self, handler: Any, arriving: _Arriving) -> Any:
        """Returns a handler that counts among the few until its request was decoded, or its caller left."""
        arriving.num_read_by_grpc += 1
        is_counted = True

        def arrived(_: Any = None) -> None:
            nonlocal is_counted
            arriving.num_read_by_grpc -= is_counted
            is_counted = False

        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(arrived)
        method = handler.unary_unary or handler.unary_stream

        async def answer(data: bytes, context: Any) -> Any:
            with await self._room_for(data, context):
                request = await self._decoded(data, handler)
                arrived()
                return await method(request, context)

        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        return handler._replace(request_deserializer=None, **{kind: answer})

    def _read_here(self, handler: Any, arriving: _Arriving) -> Any:
        """Returns a handler that reads its request when it has a permit, and not for long."""

        async def answer(_: Any, context: Any) -> None:
            async with AsyncExitStack() as permit:
                await permit.enter_async_context(arriving.permits)
                data = await self._read(context)
                if data is grpc.aio.EOF:  # type: ignore[attr-defined]  # the caller left
                    return
                with await self._room_for(data, context):
                    request = await self._decoded(data, handler)
                    del data
                    await permit.aclose()
                    if handler.response_streaming:
                        await handler.unary_stream(request, context)
                    else:
                        await context.write(await handler.unary_unary(request, context))

        return handler._replace(
            request_streaming=True,
            response_streaming=True,
            request_deserializer=None,
            unary_unary=None,
            unary_stream=None,
            stream_stream=answer,
        )

    async def _room_for(self, data: bytes, context: Any) -> AbstractContextManager[object]:
        """Returns what holds a request's memory as long as it is entered; refuses the request where there is none."""
        if len(data) <= SMALL_REQUEST_BYTES:
            return nullcontext()
        memory = self._memory.share()
        try:
            await memory.hold((1 + DECODED_BYTES_PER_BYTE) * len(data))
        except OutOfMemoryBudgetError:
            await self._refuse(too_many_requests("other requests hold the memory that this one needs"), context)
        return memory

    async def _read(self, context: Any) -> Any:
        """Returns the request's bytes, or EOF; refuses one that takes too long.

        Reading is not cancelled: gRPC's core would write what still comes to memory that was freed with it. It ends by
        itself, because the call does.
        """
        refusing: list[asyncio.Task[NoReturn]] = []

        def refuse() -> None:
            error = too_many_requests(f"the request did not come within {RECEIVE_SECONDS:g} seconds")
            refusing.append(asyncio.ensure_future(self._refuse(error, context)))

        timer = asyncio.get_running_loop().call_later(RECEIVE_SECONDS, refuse)
        try:
            data = await context.read()
        finally:
            timer.cancel()
        for refusal in refusing:
            await refusal  # raises
        return data

    async def _decoded(self, data: bytes, handler: Any) -> Any:
        """Returns a request; large ones are decoded one after the other, and leave others most of the time."""
        decode = handler.request_deserializer or bytes
        if len(data) <= SMALL_REQUEST_BYTES:
            return decode(data)
        async with self._decoding:
            began = time.perf_counter()
            request = decode(data)
            await asyncio.sleep(_PAUSES * (time.perf_counter() - began))
        return request

    async def _refuse(self, error: ServiceError, context: Any) -> NoReturn:
        self._on_refusal(error)
        await abort(context, error)


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a service's calls through once it is open.

    Args:
        service: its full name.
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"
        self._is_open = asyncio.Event()

    def open(self) -> None:
        """Lets all calls through, from now on."""
        self._is_open.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Waits where the call is the service's."""
        if handler_call_details.method.startswith(self._prefix):
            await self._is_open.wait()
        return await continuation(handler_call_details)


class Decoding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Hands methods of one service a ServiceError instead of a request that cannot be decoded.

    Args:
        service: full name, e.g. "packhorse.v1.PackingService".
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, with a decoder that does not raise."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        return handler._replace(request_deserializer=_tolerant(handler.request_deserializer))


def _tolerant(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any | ServiceError:
        try:
            return decode(data)
        except DecodeError:
            return invalid_field("request", f"the request's {len(data)} bytes are no protocol message of this method")

    return decoded
