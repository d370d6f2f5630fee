"""The methods of the service as gRPC calls them.

Owns lanes, limits, draining and the order in which a stream's blocks are made and sent. Leaves the meaning of a request
to `backend`, and the status of a failure to `service.status`.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from packhorse.server.access.tokens import CLIENT
from packhorse.server.base.faults import RETRY_AFTER_SECONDS, ServiceError
from packhorse.server.base.time_slices import TimeSlices
from packhorse.server.methods.backend import Backend
from packhorse.server.methods.datasets import check_num_skips
from packhorse.server.methods.open_stream import BLOCK_BYTES, OpenStream
from packhorse.server.methods.pack import SEARCHING
from packhorse.server.methods.stream_request import LONG_REQUEST_BYTES
from packhorse.server.methods.versions import check_wire_version
from packhorse.server.service.lanes import Lane, Lanes
from packhorse.server.service.memory_budget import DECODED_BYTES_PER_BYTE, MemoryBudget, MemoryShare
from packhorse.server.service.status import abort, refusal_of
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

MEMORY_BYTES = 512 << 20
"""What single answers and packing take together, and blocks of streams of more than LARGE_BLOCK_BYTES."""

MEMORY_WAIT_SECONDS = 1.0
"""How long a request waits for memory before it is refused."""

UNREAD_SECONDS = 1.0
"""How long a drain waits for a stream whose client does not read."""

QUIET_SECONDS, READ_OUT_SECONDS = 0.05, 2.0
"""A PackStream is refused once its client has sent nothing for the first, and at the latest after the second."""

LOOK_AGAIN_SECONDS = 1.0
"""A block that has waited longer for its client is sent only if no file has changed since it was made."""

SMALL_BLOCK_BYTES = 40 << 10
"""After a smaller block the next one is made in the lane of small ones too."""

LARGE_BLOCK_BYTES = BLOCK_BYTES + BLOCK_BYTES // 2
"""Larger ones, which may hold a single step, count in the budget of memory."""

BLOCKS_IN_MEMORY = 4
"""A large block counts this many times: as message and as bytes on their way, and the next one as message and in
arrays."""

_Request = TypeVar("_Request", bound=Message)
_Result = TypeVar("_Result")
_Opened: TypeAlias = tuple[OpenStream, list[pb.StreamBinsResponse]]
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PackingServicer(packing_pb2_grpc.PackingServiceServicer):
    """Answers from the backend, each kind of request in its lane. Made within a running event loop.

    Each stream holds at most two blocks: the one being sent, and the next, made meanwhile. If its client waits for
    that, the stream holds one more.

    Args:
        backend: answers requests.
        metrics: of these requests.
        lanes: where requests run.
        limit: of streams open at once.
        activity: returns the answer to GetActivity.
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
        """Returns once the remaining calls are all streams whose clients have not read for UNREAD_SECONDS."""
        begin = time.monotonic()
        while self._num_calls > self._num_sending or (
            self._num_calls and time.monotonic() - begin < UNREAD_SECONDS  # what a client reads by then has ended
        ):
            await asyncio.sleep(0.02)

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: _Context) -> pb.ListDatasetsResponse:  # noqa: N802
        """Lists the datasets that are served."""
        response = await self._answer(_whole(self._backend.list_datasets), request, context, self._lanes.answers)
        return CLIENT.get().visible_datasets(response)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.GetDatasetResponse:  # noqa: N802
        """Describes one dataset."""
        return await self._answer(_whole(self._backend.get_dataset), request, context, self._lanes.answers)

    async def GetBins(self, request: pb.GetBinsRequest, context: _Context) -> pb.GetBinsResponse:  # noqa: N802
        """Returns the bins at any positions."""
        lane = self._lanes.tokens if request.with_tokens else self._lanes.answers
        return await self._answer(self._backend.get_bins_in_slices, request, context, lane)

    async def LocateSequences(  # noqa: N802
        self, request: pb.LocateSequencesRequest, context: _Context
    ) -> pb.LocateSequencesResponse:
        """Returns where each id is in an epoch."""
        return await self._answer(self._backend.locate_in_slices, request, context, self._lanes.answers)

    async def PackSequences(self, request: pb.PackSequencesRequest, context: _Context) -> pb.PackSequencesResponse:  # noqa: N802
        """Packs the given lengths at once."""
        lane = self._lanes.searching if request.algorithm in SEARCHING else self._lanes.packing
        return await self._answer(self._backend.pack_in_slices, request, context, lane)

    async def PackStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PackStreamRequest], context: _Context
    ) -> AsyncIterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one; every message is answered before the next is read."""
        async with self._call(context) as memory, _read_out(request_iterator):
            with self._stream("PackStream"):
                session = self._backend.pack_session()
                while True:
                    message = await self._unless_draining(asyncio.ensure_future(anext(request_iterator, None)))
                    if message is None:
                        return
                    answer = self._run(self._lanes.packing, session.answer_in_slices, message, memory)
                    response = await self._unless_draining(asyncio.ensure_future(answer))
                    CLIENT.get().check_again()
                    with self._sending():
                        yield response

    async def StreamBins(  # noqa: N802
        self, request: pb.StreamBinsRequest, context: _Context
    ) -> AsyncIterator[pb.StreamBinsResponse]:
        """Streams a header and blocks, making the next block while one is sent.

        The first block comes with the header, unless something has to be arranged for it.
        """
        started = time.perf_counter()
        async with self._call(context) as memory:
            with self._stream("StreamBins"):
                stream, messages = await self._unless_draining(self._opening(_admitted(request)))
                ahead: deque[asyncio.Future[pb.StreamBinsResponse | None]] = deque()
                num_blocks = 0
                try:
                    while messages:
                        size = messages[-1].ByteSize()
                        await memory.hold(BLOCKS_IN_MEMORY * size if size > LARGE_BLOCK_BYTES else 0)
                        if num_blocks and not ahead:
                            ahead.extend(self._next_block(stream, size))
                        CLIENT.get().check_again()
                        sent_at = time.monotonic()
                        for message in messages:
                            with self._sending():
                                yield message
                            if message.HasField("block"):
                                num_blocks += 1
                                if num_blocks == 1:
                                    self._metrics.first_block.observe(time.perf_counter() - started)
                                self._count(request.dataset, message.block)
                        messages = await self._following(stream, ahead, size, sent_at)
                finally:
                    stream.close()
                    for each in ahead:
                        each.cancel()

    def _opening(self, request: pb.StreamBinsRequest) -> "asyncio.Future[_Opened]":
        """Opens a stream; in another lane if its request takes long to check."""
        is_long = request.ByteSize() > LONG_REQUEST_BYTES
        lane = self._lanes.arranging if is_long else self._lanes.small_blocks
        if request.with_tokens:
            lane = self._lanes.tokens
        return lane.submit(self._opened, request)

    def _opened(self, request: pb.StreamBinsRequest) -> _Opened:
        """Opens a stream, and makes its first messages: the header, and a block if one can be made at once."""
        stream = self._backend.open_stream(request)
        messages = [pb.StreamBinsResponse(header=stream.header)]
        if stream.is_arranged() and (steps := stream.take()) and (block := self._timed(stream, steps)) is not None:
            messages.append(block)
        return stream, messages

    async def _following(
        self,
        stream: OpenStream,
        ahead: "deque[asyncio.Future[pb.StreamBinsResponse | None]]",
        num_bytes: int,
        sent_at: float,
    ) -> list[pb.StreamBinsResponse]:
        """Returns the message that follows one of `num_bytes`, begun to be sent at `sent_at`; empty at the end."""
        if not ahead:  # a block made beside the first would keep that waiting for the interpreter
            ahead.extend(self._next_block(stream, num_bytes))
        if not ahead:
            return []
        upcoming = ahead.popleft()
        is_being_made = not upcoming.done() and not isinstance(upcoming, asyncio.Task)  # else it is being arranged
        if is_being_made and SMALL_BLOCK_BYTES <= num_bytes <= LARGE_BLOCK_BYTES:
            ahead.extend(self._next_block(stream, num_bytes))  # the client waits: two threads make two
        block = await self._unless_draining(upcoming)
        if block is None:
            return []
        if time.monotonic() - sent_at > LOOK_AGAIN_SECONDS:
            looking = self._lanes.small_blocks.submit(stream.is_current)
            if not await self._unless_draining(looking):
                return []
        return [block]

    def _next_block(
        self, stream: OpenStream, num_bytes: int
    ) -> "Iterator[asyncio.Future[pb.StreamBinsResponse | None]]":
        """Begins the block that follows one of `num_bytes`, if there is one."""
        lane = self._lanes.small_blocks if num_bytes < SMALL_BLOCK_BYTES else self._lanes.streams
        if stream.with_tokens:
            lane = self._lanes.tokens
        if not (steps := stream.take()):
            return
        if stream.is_arranged(steps):
            yield lane.submit(self._timed, stream, steps)
        else:
            yield asyncio.ensure_future(self._arranged(stream, steps, lane))

    async def _arranged(self, stream: OpenStream, steps: range, lane: Lane) -> pb.StreamBinsResponse | None:
        """First arranges in a lane of its own what takes long, so that no other stream's block waits for it."""
        await self._lanes.arranging.run(stream.arrange_in_slices(steps), _hold_nothing)
        return await lane.submit(self._timed, stream, steps)

    def _timed(self, stream: OpenStream, steps: range) -> pb.StreamBinsResponse | None:
        started = time.perf_counter()
        block = stream.make(steps)
        self._metrics.block.observe(time.perf_counter() - started)
        return block

    def _count(self, dataset: str, block: pb.StreamBlock) -> None:
        self._metrics.bins.labels(dataset).inc(len(block.bins.templates) // 4)
        self._metrics.sequences.labels(dataset).inc(block.num_sequences)
        self._metrics.tokens.labels(dataset).inc(block.num_tokens)

    async def GetActivity(self, request: pb.GetActivityRequest, context: _Context) -> pb.GetActivityResponse:  # noqa: N802
        """Says what this process does now. In no lane, because people ask when the lanes are full."""
        async with self._call(context):
            _admitted(request)
            activity = CLIENT.get().visible_activity(self._activity())
        return activity  # noqa: RET504  # returned within, mypy would miss a return here

    async def AppendStage(self, request: pb.AppendStageRequest, context: _Context) -> pb.AppendStageResponse:  # noqa: N802
        """Appends a stage to a mixture, for clients that may."""

        def append(admitted: pb.AppendStageRequest) -> pb.AppendStageResponse:
            client.check_changes()
            return self._backend.append_stage(admitted)

        client = CLIENT.get()
        return await self._answer(_whole(append), request, context, self._lanes.answers)

    async def _answer(
        self, method: Callable[[_Request], TimeSlices[_Result]], request: _Request, context: _Context, lane: Lane
    ) -> _Result:
        async with self._call(context) as memory:
            answer = await self._run(lane, method, request, memory)
        return answer  # noqa: RET504

    async def _run(
        self, lane: Lane, method: Callable[[_Request], TimeSlices[_Result]], request: _Request, memory: MemoryShare
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
            for each in aborts:  # gRPC keeps it with the call: a cycle that holds every frame's request and answer
                each.__traceback__ = each.__context__ = None
            aborts.clear()

        context.add_done_callback(end)  # type: ignore[arg-type]
        try:
            yield memory
        except Exception as error:
            refusal = CLIENT.get().visible_error(refusal_of(error))
            self._metrics.count_refusal(refusal)
            try:
                await abort(context, refusal)
            except grpc.aio.AbortError as aborted:
                aborts.append(aborted)
                raise

    @contextmanager
    def _stream(self, method: str) -> Iterator[None]:
        """Counts a stream, or refuses it."""
        if not self._limit.take():
            raise ServiceError(
                pb.ERROR_REASON_TOO_MANY_STREAMS,
                f"{self._limit.most} streams are open, which is this server's limit",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._metrics.active_streams.labels(method).inc()
        try:
            yield
        finally:
            self._limit.give_back()
            self._metrics.active_streams.labels(method).dec()

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Counts a stream that waits for its client."""
        self._num_sending += 1
        try:
            yield
        finally:
            self._num_sending -= 1

    async def _unless_draining(self, work: "asyncio.Future[_Result]") -> _Result:
        """Waits for work, or gives it up once the server drains: idle streams would outlast the grace period."""
        self._awaited.add(work)
        try:
            if self._is_draining:
                work.cancel()
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_draining or task is None or task.cancelling():
                raise
            raise ServiceError(
                pb.ERROR_REASON_SHUTTING_DOWN, "this server is shutting down; continue with another replica"
            ) from None
        finally:
            self._awaited.discard(work)
            work.cancel()


async def _hold_nothing(_num_bytes: int) -> None:
    """Holds no memory: an assignment bounds how much is arranged."""


@asynccontextmanager
async def _read_out(messages: AsyncIterator[object]) -> AsyncIterator[None]:
    """Reads what a client still sends before it is refused: else grpc.aio reports a message that it could not send.

    Reading is not cancelled: gRPC's core would write what still comes to memory that was freed with it. It ends by
    itself, because the call does.
    """
    try:
        yield
    except Exception:
        end = time.monotonic() + READ_OUT_SECONDS
        while (left := end - time.monotonic()) > 0:
            reading = asyncio.ensure_future(anext(messages, None))
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # asyncio logs no trace of it
            done, _ = await asyncio.wait({reading}, timeout=min(QUIET_SECONDS, left))
            if not done or reading.cancelled():
                break
            failure = reading.exception()
            if not isinstance(failure, ServiceError) and (failure or reading.result() is None):
                break  # else a message, or one more that cannot be decoded
        raise


def _whole(method: Callable[[_Request], _Result]) -> Callable[[_Request], TimeSlices[_Result]]:
    """Returns a method of a single time slice."""

    def whole(request: _Request) -> TimeSlices[_Result]:
        return method(request)
        yield  # makes it a generator

    return whole


def _admitted(request: _Request) -> _Request:
    """Returns the request.

    Raises:
        ServiceError: this client may not ask for it, or its release is too old.
    """
    CLIENT.get().check_request(request)
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest | pb.LocateSequencesRequest):
        check_num_skips(request.skip)  # before anything is computed from them
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest):
        check_wire_version(request.wire_version)
    elif isinstance(request, pb.PackStreamRequest) and request.HasField("options"):
        check_wire_version(request.options.wire_version)
    return request
