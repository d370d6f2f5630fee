"""Every call of the server, from its beginning to its end: what came, what left, how long it took.

Owns the interceptor that follows calls. Leaves what is made of them to watchers: metrics, the log, traces, and the list
of open streams. A call's handlers know nothing of them.
"""

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from packhorse.server.access.access import CALLER
from packhorse.server.base.logs import Sparing, fields
from packhorse.server.base.shielded import Shielded
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"].full_name

_READER_LEFT = "ExecuteBatchError"
"""The name of what gRPC raises from a write where the caller has just left."""

_CANCELLED_SECONDS = 10.0
"""How long a call whose client has left waits to be cancelled by gRPC, which takes a moment."""

_STREAMS = (f"{SERVICE}/StreamBins", f"{SERVICE}/PackStream")


@dataclass(eq=False, slots=True)
class Call:
    """One call. Its times are of `time.perf_counter`."""

    method: str
    """Full name without a slash before it, e.g. packhorse.v1.PackingService/GetBins."""
    trace_parent: str = ""
    """The caller's span, as W3C's header `traceparent` names it."""
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names it in the log and in the status."""
    began: float = field(default_factory=time.perf_counter)
    request: Message | None = None
    """The first; None before it came, and where it could not be decoded."""
    peer: str = ""
    """Where it came from, as gRPC writes addresses."""
    holder: str = ""
    """Name of the token that it came with; empty where there are no tokens."""
    received_bytes: int = 0
    sent_bytes: int = 0
    num_sent: int = 0
    """Messages that left."""
    sending_since: float | None = None
    """When the message that waits for its receiver was ready; where the call ended, the one that never left."""
    blocked_seconds: float = 0.0
    """How long the messages that left waited for their receiver (flow control)."""
    ended: float | None = None
    status: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    """Of the status: empty where it is OK."""

    @property
    def is_ours(self) -> bool:
        """Whether it is of the packing service, and not health or reflection."""
        return self.method.startswith(f"{SERVICE}/")

    @property
    def is_stream(self) -> bool:
        """Whether it is a StreamBins or a PackStream."""
        return self.method in _STREAMS

    @property
    def name(self) -> str:
        """The method's short name, e.g. GetBins."""
        return self.method.rpartition("/")[2]

    @property
    def seconds(self) -> float:
        """How long it has been open, or was."""
        return (self.ended or time.perf_counter()) - self.began

    def facts(self) -> dict[str, Any]:
        """What its request asks for, by the names of its fields: dataset, epoch, rank, worker, step and so on."""
        request = self.request
        facts: dict[str, Any] = {}
        if isinstance(request, pb.GetDatasetRequest):
            facts["dataset"] = request.name
        elif request is not None and "dataset" in request.DESCRIPTOR.fields_by_name:
            facts = {
                field: getattr(request, field)
                for field in ("dataset", "epoch", "from_position")
                if field in request.DESCRIPTOR.fields_by_name
            }
        if isinstance(request, pb.StreamBinsRequest):
            facts |= {"rank": request.rank, "worker": request.worker, "step": request.first_step}
        return facts


class Watcher:
    """Is told what happens to calls; does nothing by itself. All from the event loop."""

    def began(self, call: Call) -> None:
        """A call came in; its request is not here yet."""

    def sends(self, call: Call, message: Any) -> None:
        """A message is ready, and waits for its receiver."""

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """It left, after it has waited so long for its receiver (flow control)."""

    def ended(self, call: Call) -> None:
        """The call is over."""


class Calls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Follows every call, and tells watchers. The outermost interceptor: it sees refusals of the others too.

    Args:
        watchers: in the order in which they are told.
    """

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, which tells of every step."""
        handler = await continuation(handler_call_details)
        known = handler is not None
        call = Call(handler_call_details.method.removeprefix("/") if known else "other")
        call.holder = CALLER.get().name
        call.trace_parent = _trace_parent(handler_call_details.invocation_metadata)
        self._tell("began", call)
        if handler is None:
            self._end(call, grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
            return None
        followed = _Followed(call, handler, self._tell, self._end)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(followed.over)  # gRPC's own callbacks are for calls whose request has come
        replaced: dict[str, Any] = {
            "request_deserializer": followed.decode,
            "response_serializer": followed.encode,
        }
        if handler.unary_unary is not None:
            replaced["unary_unary"] = followed.answer
        elif handler.stream_unary is not None:
            replaced["stream_unary"] = followed.answer
        elif handler.unary_stream is not None:
            replaced["unary_stream"] = followed.stream
        else:
            replaced["stream_stream"] = followed.stream
        return handler._replace(**replaced)

    def _tell(self, what: str, *facts: Any) -> None:
        for watcher in self._watchers:
            getattr(watcher, what)(*facts)

    def _end(self, call: Call, status: grpc.StatusCode, message: str) -> None:
        call.ended, call.status, call.message = time.perf_counter(), status, message
        self._tell("ended", call)


class _Followed:
    """A call's handler, with its steps told of."""

    def __init__(
        self,
        call: Call,
        handler: Any,
        tell: Callable[..., None],
        end: Callable[[Call, grpc.StatusCode, str], None],
    ) -> None:
        self._call = call
        self._handler = handler
        self._tell = tell
        self._end = end
        self._context: Any = None
        self._failure = ""

    def decode(self, data: bytes) -> Any:
        self._call.received_bytes += len(data)
        decode = self._handler.request_deserializer
        request = data if decode is None else decode(data)
        if self._call.request is None and isinstance(request, Message):
            self._call.request = request
        return request

    def encode(self, message: Any) -> bytes:
        encode = self._handler.response_serializer
        data: bytes = message if encode is None else encode(message)
        self._call.sent_bytes += len(data)
        return data

    async def answer(self, request: Any, context: Any) -> Any:
        """One answer; gRPC sends it after this has returned."""
        self._begin(context)
        try:
            answer = await (self._handler.unary_unary or self._handler.stream_unary)(request, context)
        except BaseException as error:
            self._failed(error)
            raise
        self._call.num_sent += 1
        return answer

    async def stream(self, request: Any, context: Any) -> None:
        """Many answers, each written here, so that it is known how long it waits for its receiver."""
        self._begin(context)
        call = self._call
        method = self._handler.unary_stream or self._handler.stream_stream
        try:
            if not inspect.isasyncgenfunction(method):  # it writes by itself
                await method(request, context)
                return
            async with aclosing(method(request, context)) as messages:
                async for message in messages:
                    call.sending_since = time.perf_counter()
                    self._tell("sends", call, message)
                    await _write(message, context)
                    waited_seconds = time.perf_counter() - call.sending_since
                    call.sending_since = None
                    call.blocked_seconds += waited_seconds
                    call.num_sent += 1
                    self._tell("sent", call, message, waited_seconds)
        except BaseException as error:
            self._failed(error)
            raise

    def over(self, _: Any) -> None:
        """Tells that the call's task is done."""
        context, status, message = self._context, None, self._failure
        if self._failure:
            status = grpc.StatusCode.UNKNOWN
        elif context is not None and (context.code() is not None or context.done()):
            status, message = context.code() or grpc.StatusCode.OK, context.details()
        self._end(self._call, status or grpc.StatusCode.CANCELLED, message)
        del self._call  # gRPC keeps this in a cycle with the call's context: its request would stay as long

    def _begin(self, context: Any) -> None:
        self._context = context
        self._call.peer = context.peer()

    def _failed(self, error: BaseException) -> None:
        has_left = type(error).__name__ == _READER_LEFT
        if not has_left and not isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
            self._failure = type(error).__name__


async def _write(message: Any, context: Any) -> None:
    """Writes a message; where the client has left, waits to be cancelled instead.

    gRPC frees what it allocated for a write only where it waits for its end, and that is no failure. Left in the
    middle, each stream else costs 150 bytes for good: of a write that was cancelled, that was begun after the client
    had left, or of the status that follows a failure.
    """
    if not context.cancelled():
        try:
            await Shielded(asyncio.get_running_loop(), context.write(message))
        except Exception as error:
            if type(error).__name__ != _READER_LEFT:
                raise
        else:
            return
    await asyncio.sleep(_CANCELLED_SECONDS)
    raise asyncio.CancelledError


def _trace_parent(metadata: Any) -> str:
    found = [value for key, value in metadata or () if key == "traceparent" and isinstance(value, str)]
    return found[0] if found else ""


_CALLS = logging.getLogger(__name__)
_STREAMS_LOG = _CALLS.getChild("streams")
_REFUSED = _STREAMS_LOG.getChild("refused")

MOST_LINES = {_STREAMS_LOG: 10_000, _REFUSED: 60}
"""In a minute. Streams that open and end are logged for the largest run that starts; strangers may be refused as often
as they like."""


class CallLog(Watcher):
    """Logs calls."""

    def __init__(self) -> None:
        for logger, most_lines in MOST_LINES.items():
            if not logger.filters:
                logger.addFilter(Sparing(most_lines))

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Logs a stream once its first block or answer has left; before, a line would keep that waiting."""
        if call.is_stream and call.num_sent == 1 + isinstance(message, pb.StreamBinsResponse):
            _STREAMS_LOG.info("stream opened", extra=fields(stream=call.id, **_who(call)))

    def ended(self, call: Call) -> None:
        """Logs the end of a stream, or a single call."""
        outcome = {"status": call.status.name, "seconds": round(call.seconds, 6), "why": call.message}
        if call.is_stream and call.num_sent:
            counts = {"blocks": call.num_sent - 1, "bytes": call.sent_bytes, "blocked": round(call.blocked_seconds, 3)}
            _STREAMS_LOG.info("stream ended", extra=fields(stream=call.id, **_who(call), **counts, **outcome))
        elif call.is_stream and call.status is grpc.StatusCode.OK:  # nobody refused it
            _REFUSED.info(
                "stream left before its first message", extra=fields(**_who(call), seconds=outcome["seconds"])
            )
        elif call.is_stream and call.status is not grpc.StatusCode.CANCELLED:
            _REFUSED.warning("stream refused", extra=fields(**_who(call), **outcome))
        elif _CALLS.isEnabledFor(logging.DEBUG):
            counts = {"received_bytes": call.received_bytes, "sent_bytes": call.sent_bytes}
            _CALLS.debug("call", extra=fields(**_who(call), **counts, **outcome))


def _who(call: Call) -> dict[str, Any]:
    method = call.name if call.is_ours else call.method
    return {"method": method, **call.facts(), "peer": call.peer, "token_name": call.holder}


class CallMetrics(Watcher):
    """Counts and measures calls.

    Args:
        metrics: move with them.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, call: Call) -> None:
        """Counts a call."""
        self._metrics.calls_started.labels(call.method).inc()

    def sends(self, call: Call, message: Any) -> None:
        """Counts a message that waits for its receiver."""
        if call.is_stream:
            self._metrics.blocked_streams.inc()

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Counts the time that it waited; with a stream's first, that the stream goes on where another broke."""
        if not call.is_stream:
            return
        self._metrics.blocked_streams.dec()
        dataset = getattr(call.request, "dataset", "")
        self._metrics.blocked_seconds.labels(dataset).inc(waited_seconds)
        if call.num_sent == 1 and isinstance(call.request, pb.StreamBinsRequest) and call.request.first_step:
            self._metrics.resumed.labels(dataset).inc()

    def ended(self, call: Call) -> None:
        """Measures a call."""
        if call.is_stream and call.sending_since is not None:
            self._metrics.blocked_streams.dec()
        labels = (call.method, call.status.name)
        self._metrics.call_seconds.labels(*labels).observe(call.seconds)
        self._metrics.sent_bytes.labels(*labels).observe(call.sent_bytes)
        self._metrics.received_bytes.labels(*labels).observe(call.received_bytes)
