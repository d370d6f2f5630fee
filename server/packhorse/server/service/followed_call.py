"""A call from its request to its end: receiving the request within limits, answering it, and showing each step.

Owns `FollowedCall`, and what the calls of a server share, `AllCalls`. Leaves tokens to `interceptor`, the answers to
`servicer`, and logs, metrics and traces of calls to `call_log`, `call_metrics` and `tracing`.

gRPC by itself reads whatever is sent: a thousand requests of 4 MiB that never end would take 4 GiB, and a thousand
complete ones several times as much, before any limit of ours applies. So requests are counted while they arrive.
"""

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from typing import Any, NoReturn, Self

import grpc
from google.protobuf.message import DecodeError, Message

from packhorse.server.base.faults import ServiceError, invalid_field, too_many_requests
from packhorse.server.base.workarounds import CLIENT_LEFT, write_to_its_end
from packhorse.server.service.memory_budget import DECODED_BYTES_PER_BYTE, MemoryBudget, OutOfMemoryBudgetError
from packhorse.server.service.status import abort
from packhorse.server.watching.calls import Call, Watcher

MOST_AT_ONCE = 16
"""Most requests of one method that gRPC reads at once. This module reads as many more at once. Others wait unread, with
at most 64 KiB of each arrived."""

RECEIVE_SECONDS = 10.0
"""Longest time for a request that is read here to arrive, because others wait for its permit."""

SMALL_REQUEST_BYTES = 64 << 10
"""Size up to which requests do not count in the budget of memory. No stream's request is larger, and the limit of
streams bounds how many there are."""

REQUEST_BYTES = 256 << 20
"""Memory of all larger requests together until they are answered. The servicer counts a request again with its answer,
in another budget: with one budget for both, arriving requests could leave no room to answer any of them."""

_PAUSE_RATIO = 4
"""Pause after a larger request was decoded, as a multiple of the time that this took. Decoding keeps the event loop and
the interpreter busy: 300,000 ranges in 4 MiB take 12 ms."""

REQUEST_WAIT_SECONDS = 1.0
"""How long a request waits for memory before it is refused."""


class Arriving:
    """The requests of one method that have begun to arrive."""

    def __init__(self) -> None:
        self.num_read_by_grpc = 0
        """How many of them gRPC reads now."""
        self.permits = asyncio.Semaphore(MOST_AT_ONCE)
        """Permits for the requests that are read here, not by gRPC."""


class AllCalls:
    """What the calls of a server share: who watches them, and the limits on their requests.

    Args:
        watchers: what each step of a call is shown to, in this order.
        on_refusal: called with every refusal.
        writes_to_end: whether messages are written by `workarounds.write_to_its_end`.
    """

    def __init__(
        self, watchers: Sequence[Watcher], on_refusal: Callable[[ServiceError], None], *, writes_to_end: bool
    ) -> None:
        self._watchers = watchers
        self.on_refusal = on_refusal
        self.writes_to_end = writes_to_end
        self.memory = MemoryBudget(REQUEST_BYTES, REQUEST_WAIT_SECONDS)
        """Memory of the requests that are not small."""
        self.decoding = asyncio.Lock()
        """Held while such a request is decoded."""
        self.arriving: defaultdict[str, Arriving] = defaultdict(Arriving)
        """Path of a method → its requests."""

    def show(self, step: str, *facts: Any) -> None:
        """Shows a step of a call to every watcher."""
        for watcher in self._watchers:
            getattr(watcher, step)(*facts)

    def end(self, call: Call, status: grpc.StatusCode, message: str) -> None:
        """Shows how a call ended."""
        call.ended, call.status, call.message = time.perf_counter(), status, message
        self.show("ended", call)


class FollowedCall:
    """A call's handler, wrapped so that each step is shown to the watchers. It is made in the call's own task.

    Args:
        all_calls: what the call shares with others.
        call: the record of the call that watchers see.
        handler: gRPC's handler of the method.
        arriving: the requests of the method that have begun to arrive.
    """

    def __init__(self, all_calls: AllCalls, call: Call, handler: Any, arriving: Arriving) -> None:
        self._all_calls = all_calls
        self._call = call
        self._handler = handler
        self._arriving = arriving
        self._counts_as_arriving = False  # whether this call is in `arriving.num_read_by_grpc`
        self._context: Any = None
        self._failure = ""
        # No service here has a method with a stream of requests and one answer.
        self._method = handler.unary_unary or handler.unary_stream or handler.stream_stream
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(self._show_end)  # gRPC's own callbacks are for calls whose request has come

    def handler(self) -> Any:
        """Returns the handler that gRPC runs. While few requests arrive, gRPC reads them: it is faster than we are."""
        handler, replace = self._handler, self._handler._replace
        if handler.request_streaming:
            return replace(
                request_deserializer=None, response_serializer=self._encode, stream_stream=self._answer_requests
            )
        if self._arriving.num_read_by_grpc < MOST_AT_ONCE:
            self._arriving.num_read_by_grpc += 1
            self._counts_as_arriving = True
            kind = "unary_stream" if handler.response_streaming else "unary_unary"
            answer = {kind: self._answer_read_by_grpc}
            return replace(request_deserializer=None, response_serializer=self._encode, **answer)
        return self._as_stream(self._read_and_answer)

    def refusing(self, error: ServiceError) -> Any:
        """Returns a handler that answers with an error at once, without reading the request."""

        async def refuse(_: Any, context: Any) -> NoReturn:
            self._begin(context)
            await abort(context, error)

        return self._as_stream(refuse)

    def _as_stream(self, answer: Callable[[Any, Any], Awaitable[None]]) -> Any:
        """Returns a handler for which gRPC reads no request by itself."""
        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=self._encode)

    async def _answer_read_by_grpc(self, data: bytes, context: Any) -> Any:
        with await self._room_for(data, context):
            request = await self._decode_in_turn(data, context)
            self._stop_counting()
            answer = self._stream if self._handler.response_streaming else self._answer
            return await answer(request, context)

    async def _read_and_answer(self, _: Any, context: Any) -> None:
        """Waits for a permit, reads the request, and answers it. The permit is given back before the answer."""
        async with AsyncExitStack() as permit:
            await permit.enter_async_context(self._arriving.permits)
            data = await self._read_request(context)
            if data is grpc.aio.EOF:  # type: ignore[attr-defined]  # the client left
                return
            with await self._room_for(data, context):
                request = await self._decode_in_turn(data, context)
                del data
                await permit.aclose()
                if self._handler.response_streaming:
                    await self._stream(request, context)
                else:
                    await context.write(await self._answer(request, context))

    async def _read_request(self, context: Any) -> Any:
        """Returns the request's bytes, or EOF; refuses one that takes too long.

        The read is not cancelled: gRPC's core would write what still arrives to memory that was freed. Instead the call
        is ended, and the read ends with it.
        """
        refusal: asyncio.Task[NoReturn] | None = None  # begins when the time is over

        def refuse() -> None:
            nonlocal refusal
            error = too_many_requests(f"the request did not come within {RECEIVE_SECONDS:g} seconds")
            refusal = asyncio.ensure_future(self._refuse(error, context))

        timer = asyncio.get_running_loop().call_later(RECEIVE_SECONDS, refuse)
        try:
            data = await context.read()
        finally:
            timer.cancel()
        if refusal is not None:
            await refusal  # raises
        return data

    async def _room_for(self, data: bytes, context: Any) -> AbstractContextManager[object]:
        """Returns a context manager that holds the request's memory; refuses the request if there is not enough."""
        if len(data) <= SMALL_REQUEST_BYTES:
            return nullcontext()
        memory = self._all_calls.memory.share()
        try:
            await memory.hold((1 + DECODED_BYTES_PER_BYTE) * len(data))
        except OutOfMemoryBudgetError:
            await self._refuse(too_many_requests("other requests hold the memory that this one needs"), context)
        return memory

    async def _refuse(self, error: ServiceError, context: Any) -> NoReturn:
        self._all_calls.on_refusal(error)
        await abort(context, error)

    async def _answer_requests(self, requests: Any, context: Any) -> None:
        """Answers a stream of requests. gRPC reads them; each is decoded when the method asks for it."""
        await self._stream(_DecodedRequests(requests, self._decode), context)

    async def _decode_in_turn(self, data: bytes, context: Any) -> Any:
        """Returns a request, decoded. Large ones are decoded one after the other, with pauses for other work."""
        try:
            if len(data) <= SMALL_REQUEST_BYTES:
                return self._decode(data)
            async with self._all_calls.decoding:
                began = time.perf_counter()
                request = self._decode(data)
                await asyncio.sleep(_PAUSE_RATIO * (time.perf_counter() - began))
        except ServiceError as error:
            self._begin(context)
            await self._refuse(error, context)
        return request

    def _decode(self, data: bytes) -> Any:
        """Returns the message of some bytes, and counts them.

        Raises:
            ServiceError: the bytes are not a message of this method of the packing service.
        """
        call, decode = self._call, self._handler.request_deserializer
        call.received_bytes += len(data)
        try:
            request = decode(data)
        except DecodeError:
            if not call.is_ours:
                raise
            raise invalid_field(
                "request", f"the request's {len(data)} bytes are no protocol message of this method"
            ) from None
        if call.request is None and isinstance(request, Message):
            call.request = request
        return request

    def _encode(self, message: Any) -> bytes:
        data: bytes = self._handler.response_serializer(message)
        self._call.sent_bytes += len(data)
        return data

    async def _answer(self, request: Any, context: Any) -> Any:
        """Returns the answer of a method that has one; gRPC sends it afterwards."""
        self._begin(context)
        try:
            answer = await self._method(request, context)
        except BaseException as error:
            self._note_failure(error)
            raise
        self._call.num_sent += 1
        return answer

    async def _stream(self, request: Any, context: Any) -> None:
        """Writes the answers of a method that has many, to measure how long each waits for its client."""
        self._begin(context)
        call, show = self._call, self._all_calls.show
        try:
            if not inspect.isasyncgenfunction(self._method):  # it writes its answers itself, as `Watch` of health does
                await self._method(request, context)
                return
            async with aclosing(self._method(request, context)) as messages:
                async for message in messages:
                    call.sending_since = time.perf_counter()
                    show("waits", call, message)
                    if self._all_calls.writes_to_end:
                        await write_to_its_end(message, context)
                    else:
                        await context.write(message)
                    waited_seconds = time.perf_counter() - call.sending_since
                    call.sending_since = None
                    call.blocked_seconds += waited_seconds
                    call.num_sent += 1
                    show("sent", call, message, waited_seconds)
        except BaseException as error:
            self._note_failure(error)
            raise

    def _begin(self, context: Any) -> None:
        self._context = context
        self._call.peer = context.peer()

    def _stop_counting(self) -> None:
        if self._counts_as_arriving:
            self._arriving.num_read_by_grpc -= 1
            self._counts_as_arriving = False

    def _note_failure(self, error: BaseException) -> None:
        """Notes an error that is neither a refusal nor the client's leaving."""
        name = type(error).__name__
        if name != CLIENT_LEFT and not isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
            self._failure = name

    def _show_end(self, _: Any) -> None:
        """Shows the end of the call, with its status, once the call's task is done."""
        self._stop_counting()
        context, status, message = self._context, grpc.StatusCode.CANCELLED, self._failure
        if self._failure:
            status = grpc.StatusCode.UNKNOWN
        elif context is not None and (context.code() is not None or context.done()):
            status, message = context.code() or grpc.StatusCode.OK, context.details()
        self._all_calls.end(self._call, status, message)
        del self._call  # gRPC keeps this object in a reference cycle, and with it would keep the call's request


class _DecodedRequests:
    """The messages of a stream of requests. A message that cannot be decoded raises; the next may still be read."""

    def __init__(self, requests: Any, decode: Callable[[bytes], Any]) -> None:
        self._requests = aiter(requests)
        self._decode = decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return self._decode(await anext(self._requests))
