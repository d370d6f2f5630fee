"""The gRPC face of the backend.

Owns lanes, limits, draining, metrics and statuses; leaves what a request means to `backend`.
"""

import asyncio
import errno
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from packhorse.server.access.access import CALLER
from packhorse.server.base.faults import RETRY_AFTER_SECONDS, ServiceError, too_many_requests
from packhorse.server.base.pieces import Pieces
from packhorse.server.base.status import abort, reason_name
from packhorse.server.lanes.lanes import Lane, LaneFullError, Lanes
from packhorse.server.lanes.memory import DECODED_BYTES_PER_BYTE, MemoryBudget, MemoryShare, OutOfMemoryBudgetError
from packhorse.server.lanes.stream_limit import StreamLimit
from packhorse.server.methods.backend import Backend
from packhorse.server.methods.open_stream import BLOCK_BYTES, OpenStream
from packhorse.server.methods.pack import SEARCHING
from packhorse.server.methods.requests import check_num_skips, check_wire_version
from packhorse.server.methods.stream_request import LONG_REQUEST_BYTES
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

_LOG = logging.getLogger(__name__)

MEMORY_BYTES = 512 << 20
"""What single answers and packing take together, and blocks of streams of more than LARGE_BLOCK_BYTES."""

MEMORY_WAIT_SECONDS = 1.0
"""How long a request waits for memory before it is refused."""

UNREAD_SECONDS = 1.0
"""How long a drain waits for a stream whose client does not read."""

QUIET_SECONDS, READ_OUT_SECONDS = 0.05, 2.0
"""A PackStream is refused once its client has sent nothing for so long, or at the latest after so long."""

LOOK_AGAIN_SECONDS = 1.0
"""A block that has waited longer for its client is sent if nothing has changed by file since it was made."""

SMALL_BLOCK_BYTES = 40 << 10
"""After a smaller block the next one is made among the small ones too."""

LARGE_BLOCK_BYTES = BLOCK_BYTES + BLOCK_BYTES // 2
"""Larger ones count in the budget of memory: a single step may be so large."""

BLOCKS_IN_MEMORY = 4
"""A large block counts as often: as message and as bytes on their way, and the next one as message and in arrays."""

_Request = TypeVar("_Request", bound=Message)
_Result = TypeVar("_Result")
_Opened: TypeAlias = tuple[OpenStream, list[pb.StreamBinsResponse]]
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PackingServicer(packing_pb2_grpc.PackingServiceServicer):
    """Answers from the backend, each kind of request in its lane. Made within a running event loop.

    Each stream holds at most two blocks, the one being sent, and the next, made meanwhile; where its client waits for
    that, one more.

    Args:
        backend: answers requests.
        metrics: moves with them.
        lanes: where requests run.
        limit: of streams open at once.
        activity: what GetActivity answers.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        lanes: Lanes,
        limit: StreamLimit,
        activity: Callable[[], pb.GetActivityResponse] = pb.GetActivityResponse,
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._lanes = lanes
        self._memory = MemoryBudget(MEMORY_BYTES, MEMORY_WAIT_SECONDS)
        self._limit = limit
        self._activity = activity
        self._num_calls = 0
        self._num_sending = 0  # streams that wait for their client
        self._is_draining = False
        self._awaited: set[asyncio.Future[Any]] = set()  # what streams wait for: blocks, messages, answers

    def drain(self) -> None:
        """Ends every stream at its next block or message, those that wait for one at once, and refuses new ones."""
        self._is_draining = True
        for work in list(self._awaited):
            work.cancel()

    async def only_unread(self) -> None:
        """Returns once all calls that are left are streams whose clients have not read for UNREAD_SECONDS."""
        begin = time.monotonic()
        while self._num_calls > self._num_sending or (
            self._num_calls and time.monotonic() - begin < UNREAD_SECONDS  # what a client reads by then has ended
        ):
            await asyncio.sleep(0.02)

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: _Context) -> pb.ListDatasetsResponse:  # noqa: N802
        """Lists the datasets that are served."""
        response = await self._answer(_whole(self._backend.list_datasets), request, context, self._lanes.answers)
        return CALLER.get().seen(response)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.GetDatasetResponse:  # noqa: N802
        """Describes one dataset."""
        return await self._answer(_whole(self._backend.get_dataset), request, context, self._lanes.answers)

    async def GetBins(self, request: pb.GetBinsRequest, context: _Context) -> pb.GetBinsResponse:  # noqa: N802
        """Returns the bins at any positions."""
        return await self._answer(self._backend.get_bins_in_pieces, request, context, self._lanes.answers)

    async def LocateSequences(  # noqa: N802
        self, request: pb.LocateSequencesRequest, context: _Context
    ) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return await self._answer(self._backend.locate_in_pieces, request, context, self._lanes.answers)

    async def PackSequences(self, request: pb.PackSequencesRequest, context: _Context) -> pb.PackSequencesResponse:  # noqa: N802
        """Packs the given lengths at once."""
        searches = not isinstance(request, ServiceError) and request.algorithm in SEARCHING
        lane = self._lanes.searching if searches else self._lanes.packing
        return await self._answer(self._backend.pack_in_pieces, request, context, lane)

    async def PackStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PackStreamRequest], context: _Context
    ) -> AsyncIterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one; every message is answered before the next is read."""
        async with self._call(context) as memory, _read_out(request_iterator):
            with self._stream():
                session = self._backend.pack_session()
                while True:
                    message = await self._unless_draining(asyncio.ensure_future(anext(request_iterator, None)))
                    if message is None:
                        return
                    answer = self._run(self._lanes.packing, session.answer_in_pieces, message, memory)
                    response = await self._unless_draining(asyncio.ensure_future(answer))
                    CALLER.get().check_again()
                    with self._sending():
                        yield response

    async def StreamBins(  # noqa: N802
        self, request: pb.StreamBinsRequest, context: _Context
    ) -> AsyncIterator[pb.StreamBinsResponse]:
        """Streams a header and blocks, making the next block while one is sent.

        The first comes with the header, unless something is to be arranged for it.
        """
        started = time.perf_counter()
        async with self._call(context) as memory:
            with self._stream():
                stream, messages = await self._unless_draining(self._opening(_admitted(request)))
                ahead: deque[asyncio.Future[pb.StreamBinsResponse | None]] = deque()
                num_blocks = 0
                try:
                    while messages:
                        size = messages[-1].ByteSize()
                        await memory.hold(BLOCKS_IN_MEMORY * size if size > LARGE_BLOCK_BYTES else 0)
                        if num_blocks and not ahead:
                            ahead.extend(self._next_block(stream, size))
                        CALLER.get().check_again()
                        sent = time.monotonic()
                        for message in messages:
                            with self._sending():
                                yield message
                            if message.HasField("block"):
                                num_blocks += 1
                                if num_blocks == 1:
                                    self._metrics.first_block.observe(time.perf_counter() - started)
                                self._count(request.dataset, message.block)
                        if not ahead:  # one that is made beside the first would keep that waiting for the interpreter
                            ahead.extend(self._next_block(stream, size))
                        if not ahead:
                            return
                        upcoming = ahead.popleft()
                        is_being_made = not upcoming.done() and not isinstance(upcoming, asyncio.Task)  # or arranged
                        if is_being_made and SMALL_BLOCK_BYTES <= size <= LARGE_BLOCK_BYTES:
                            ahead.extend(self._next_block(stream, size))  # the client waits: two threads make two
                        made = await self._unless_draining(upcoming)
                        messages = [] if made is None else [made]
                        if messages and time.monotonic() - sent > LOOK_AGAIN_SECONDS:
                            looking = self._lanes.small_blocks.submit(stream.is_current)
                            messages = messages if await self._unless_draining(looking) else []
                finally:
                    stream.close()
                    for each in ahead:
                        each.cancel()

    def _next_block(
        self, stream: OpenStream, num_bytes: int
    ) -> "Iterator[asyncio.Future[pb.StreamBinsResponse | None]]":
        """Has the block made that follows one of so many bytes, where there is one."""
        lane = self._lanes.small_blocks if num_bytes < SMALL_BLOCK_BYTES else self._lanes.streams
        if not (steps := stream.take()):
            return
        if stream.is_arranged(steps):
            yield lane.submit(self._timed, stream, steps)
        else:
            yield asyncio.ensure_future(self._arranged(stream, steps, lane))

    async def _arranged(self, stream: OpenStream, steps: range, lane: Lane) -> pb.StreamBinsResponse | None:
        """Has what takes long arranged in a lane of its own first, so that nobody else's block waits for it."""
        await self._lanes.arranging.run(stream.arrange_in_pieces(steps), _hold_nothing)
        return await lane.submit(self._timed, stream, steps)

    async def GetActivity(self, request: pb.GetActivityRequest, context: _Context) -> pb.GetActivityResponse:  # noqa: N802
        """Tells what this process does now. In no lane, because it is asked when they are full."""
        async with self._call(context):
            _admitted(request)
            return CALLER.get().seen_activity(self._activity())
        raise AssertionError("a refusal always raises")

    async def AppendStage(self, request: pb.AppendStageRequest, context: _Context) -> pb.AppendStageResponse:  # noqa: N802
        """Appends a stage to a mixture, for those who may."""

        def append(admitted: pb.AppendStageRequest) -> pb.AppendStageResponse:
            caller.check_changes()
            return self._backend.append_stage(admitted)

        caller = CALLER.get()
        return await self._answer(_whole(append), request, context, self._lanes.answers)

    async def _answer(
        self, method: Callable[[_Request], Pieces[_Result]], request: _Request, context: _Context, lane: Lane
    ) -> _Result:
        async with self._call(context) as memory:
            return await self._run(lane, method, request, memory)
        raise AssertionError("a refusal always raises")

    async def _run(
        self, lane: Lane, method: Callable[[_Request], Pieces[_Result]], request: _Request, memory: MemoryShare
    ) -> _Result:
        """Runs a method in a lane; its memory counts until the answer has been read, or another request begins."""
        request_bytes = DECODED_BYTES_PER_BYTE * _admitted(request).ByteSize()
        await memory.hold(request_bytes)
        return await lane.run(method(request), lambda num_bytes: memory.hold(request_bytes + num_bytes))

    @asynccontextmanager
    async def _call(self, context: _Context) -> AsyncIterator[MemoryShare]:
        """Counts a call, turns what it raises into a status, and gives it memory until it is over."""
        self._num_calls += 1
        memory = self._memory.share()
        aborts: list[grpc.aio.AbortError] = []

        def end(_: Any) -> None:
            self._num_calls -= 1
            memory.end()
            for abort in aborts:  # gRPC keeps it with the call: a cycle that holds every frame's request and answer
                abort.__traceback__ = abort.__context__ = None
            aborts.clear()

        context.add_done_callback(end)  # type: ignore[arg-type]
        try:
            yield memory
        except Exception as error:
            try:
                await self._fail(CALLER.get().told(_refusal(error)), context)
            except grpc.aio.AbortError as abort:
                aborts.append(abort)
                raise

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Counts a stream, or refuses it."""
        if not self._limit.take():
            raise ServiceError(
                pb.ERROR_REASON_TOO_MANY_STREAMS,
                f"{self._limit.most} streams are open, which is this server's limit",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._metrics.active_streams.inc()
        try:
            yield
        finally:
            self._limit.give_back()
            self._metrics.active_streams.dec()

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Counts a stream that waits for its client."""
        self._num_sending += 1
        try:
            yield
        finally:
            self._num_sending -= 1

    async def _unless_draining(self, work: "asyncio.Future[_Result]") -> _Result:
        """Waits for work, or gives it up once the server drains: what is idle would outlast the grace period."""
        self._awaited.add(work)
        try:
            if self._is_draining:
                work.cancel()
            return await work
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._is_draining or caller is None or caller.cancelling():
                raise
            raise ServiceError(
                pb.ERROR_REASON_SHUTTING_DOWN, "this server is shutting down; continue with another replica"
            ) from None
        finally:
            self._awaited.discard(work)
            work.cancel()

    def _opening(self, request: pb.StreamBinsRequest) -> "asyncio.Future[_Opened]":
        """Has a stream opened; apart from others where its request takes long to check."""
        is_long = request.ByteSize() > LONG_REQUEST_BYTES
        lane = self._lanes.arranging if is_long else self._lanes.small_blocks
        return lane.submit(self._opened, request)

    def _opened(self, request: pb.StreamBinsRequest) -> _Opened:
        """Opens a stream, and makes its first messages: the header, and a block where one can be made at once."""
        stream = self._backend.open_stream(request)
        messages = [pb.StreamBinsResponse(header=stream.header)]
        if stream.is_arranged() and (steps := stream.take()) and (block := self._timed(stream, steps)) is not None:
            messages.append(block)
        return stream, messages

    def _timed(self, stream: OpenStream, steps: range) -> pb.StreamBinsResponse | None:
        started = time.perf_counter()
        block = stream.make(steps)
        self._metrics.block.observe(time.perf_counter() - started)
        return block

    def _count(self, dataset: str, block: pb.StreamBlock) -> None:
        self._metrics.bins.labels(dataset).inc(len(block.bins.templates) // 4)
        self._metrics.sequences.labels(dataset).inc(block.num_sequences)
        self._metrics.tokens.labels(dataset).inc(block.num_tokens)

    async def _fail(self, error: ServiceError, context: _Context) -> NoReturn:
        self._metrics.errors.labels(reason_name(error.reason)).inc()
        await abort(context, error)


async def _hold_nothing(_num_bytes: int) -> None:
    """What is arranged is bounded by what an assignment remembers."""


@asynccontextmanager
async def _read_out(messages: AsyncIterator[object]) -> AsyncIterator[None]:
    """Reads what a client still sends before it is refused: grpc.aio would report a message that it could not send.

    Reading is not cancelled: gRPC's core would write what still comes to memory that was freed with it. It ends by
    itself, because the call does.
    """
    try:
        yield
    except Exception:
        end = time.monotonic() + READ_OUT_SECONDS
        while (left := end - time.monotonic()) > 0:
            reading = asyncio.ensure_future(anext(messages, None))
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # nobody else asks
            done, _ = await asyncio.wait({reading}, timeout=min(QUIET_SECONDS, left))
            if not done or reading.cancelled() or reading.exception() or reading.result() is None:
                break
        raise


def _whole(method: Callable[[_Request], _Result]) -> Callable[[_Request], Pieces[_Result]]:
    """A method of one piece."""

    def piece(request: _Request) -> Pieces[_Result]:
        return method(request)
        yield  # makes it a generator

    return piece


def _admitted(request: _Request) -> _Request:
    """Returns the request; raises what `decoding` replaced it with, or that it is not for this caller."""
    if isinstance(request, ServiceError):
        raise request
    CALLER.get().check_request(request)
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest | pb.LocateSequencesRequest):
        check_num_skips(request.skip)  # before anything is computed from so many
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest):
        check_wire_version(request.wire_version)
    elif isinstance(request, pb.PackStreamRequest) and request.HasField("options"):
        check_wire_version(request.options.wire_version)
    return request


def _refusal(error: Exception) -> ServiceError:
    """What the caller is told of an exception."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, LaneFullError):
        return too_many_requests("the queue for this kind of request is full")
    if isinstance(error, OutOfMemoryBudgetError):
        return too_many_requests("other requests hold the memory that this one needs")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_requests("this server has as many files and connections open as it may")
    return _incident(error)


def _incident(error: Exception) -> ServiceError:
    """Hides an unexpected failure behind a number that stands beside its trace in the log."""
    incident = secrets.token_hex(4)
    _LOG.error("incident %s", incident, exc_info=error)
    return ServiceError(
        pb.ERROR_REASON_INTERNAL,
        f"the server failed; its log has the details under incident {incident}",
        {"incident": incident},
    )
