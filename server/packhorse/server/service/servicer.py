"""The methods of the service as gRPC calls them.

Owns the choice of lanes, the limits, draining, and the order in which a stream's blocks are made and sent. Leaves the
meaning of a request to `backend`, the status of a failure to `service.status`, and what a client still sends before it
is refused to `_reading_out`.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from packhorse.server.access.caller import CALLER
from packhorse.server.base.faults import RETRY_AFTER_SECONDS, ServiceError
from packhorse.server.base.time_slices import TimeSlices
from packhorse.server.methods.asked_dataset import check_num_skips
from packhorse.server.methods.backend import Backend
from packhorse.server.methods.on_demand.pack import SEARCHING
from packhorse.server.methods.open_stream import BLOCK_BYTES, OpenStream
from packhorse.server.methods.stream_request import LONG_REQUEST_BYTES
from packhorse.server.methods.versions import check_wire_version
from packhorse.server.service._reading_out import reading_out
from packhorse.server.service.lanes import Lane, Lanes
from packhorse.server.service.memory_budget import DECODED_BYTES_PER_BYTE, MemoryBudget, MemoryShare
from packhorse.server.service.status import abort, refusal_of
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

ANSWER_BYTES = 512 << 20
"""Memory of all single answers, of packing, and of stream blocks above LARGE_BLOCK_BYTES, together."""

ANSWER_WAIT_SECONDS = 1.0
"""How long a request waits for memory before it is refused."""

UNREAD_SECONDS = 1.0
"""How long a drain waits for streams whose clients do not read."""

_POLL_SECONDS = 0.02  # between two looks of a drain at the calls that are left

LOOK_AGAIN_SECONDS = 1.0
"""Seconds after which a block that waited for its client is sent only if no file has changed since it was made."""

SMALL_BLOCK_BYTES = 40 << 10
"""Size of a block below which the stream's next block is made in the lane of small blocks."""

LARGE_BLOCK_BYTES = BLOCK_BYTES + BLOCK_BYTES // 2
"""Size of a block above which it counts in the budget of memory. Such a block may have a single, very large step."""

BLOCKS_IN_MEMORY = 4
"""How often the size of a large block counts: as a message, as bytes on their way, and for the next block as a message
and as arrays."""

_Request = TypeVar("_Request", bound=Message)
_Result = TypeVar("_Result")
_Opened: TypeAlias = tuple[OpenStream, list[pb.StreamBinsResponse]]  # a stream, and its first messages
_Block: TypeAlias = "asyncio.Future[pb.StreamBinsResponse | None]"  # being made; None if the stream has ended
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PackingServicer(packing_pb2_grpc.PackingServiceServicer):
    """Answers from the backend, each kind of request in its lane. Made within a running event loop.

    A stream has at most two blocks in memory: the one being sent, and the next, which is made meanwhile. If the client
    waits for the next block, there is one more.

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
        self._memory = MemoryBudget(ANSWER_BYTES, ANSWER_WAIT_SECONDS)
        self._limit = limit
        self._activity = activity
        self._num_calls = 0
        self._num_sending = 0  # streams that wait for their client
        self._is_draining = False
        self._awaited: set[asyncio.Future[Any]] = set()  # what streams wait for: blocks, messages, answers

    def drain(self) -> None:
        """Ends every stream before its next block or message, and refuses new streams. Waiting streams end at once."""
        self._is_draining = True
        for work in list(self._awaited):
            work.cancel()

    async def only_unread(self) -> None:
        """Returns once the remaining calls are all streams whose clients have not read for UNREAD_SECONDS."""
        end = time.monotonic() + UNREAD_SECONDS  # until then, streams whose clients read have ended
        while self._num_calls > self._num_sending or (self._num_calls and time.monotonic() < end):
            await asyncio.sleep(_POLL_SECONDS)

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: _Context) -> pb.ListDatasetsResponse:  # noqa: N802
        """Lists the datasets that are served."""
        response = await self._answer(_in_one_slice(self._backend.list_datasets), request, context, self._lanes.answers)
        return CALLER.get().visible_datasets(response)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.GetDatasetResponse:  # noqa: N802
        """Describes one dataset."""
        return await self._answer(_in_one_slice(self._backend.get_dataset), request, context, self._lanes.answers)

    async def GetBins(self, request: pb.GetBinsRequest, context: _Context) -> pb.GetBinsResponse:  # noqa: N802
        """Returns the bins at any positions."""
        lane = self._lanes.tokens if request.with_tokens else self._lanes.answers
        return await self._answer(self._backend.get_bins_in_slices, request, context, lane)

    async def LocateSequences(  # noqa: N802
        self, request: pb.LocateSequencesRequest, context: _Context
    ) -> pb.LocateSequencesResponse:
        """Returns where each id is in an epoch."""
        return await self._answer(self._backend.locate_in_slices, request, context, self._lanes.answers)

    async def GetActivity(self, request: pb.GetActivityRequest, context: _Context) -> pb.GetActivityResponse:  # noqa: N802
        """Returns what this process does now. Uses no lane, because people ask when the lanes are full."""
        async with self._counted_call(context):
            _admitted(request)
            activity = CALLER.get().visible_activity(self._activity())
        return activity  # noqa: RET504  # returned within, mypy would miss a return here

    async def AppendStage(self, request: pb.AppendStageRequest, context: _Context) -> pb.AppendStageResponse:  # noqa: N802
        """Appends a stage to a mixture, if the client's token allows it."""
        caller = CALLER.get()  # here, because a lane's thread has no context

        def append(admitted: pb.AppendStageRequest) -> pb.AppendStageResponse:
            caller.check_changes()
            return self._backend.append_stage(admitted)

        return await self._answer(_in_one_slice(append), request, context, self._lanes.answers)

    async def PackSequences(self, request: pb.PackSequencesRequest, context: _Context) -> pb.PackSequencesResponse:  # noqa: N802
        """Packs the given lengths at once."""
        lane = self._lanes.searching if request.algorithm in SEARCHING else self._lanes.packing
        return await self._answer(self._backend.pack_in_slices, request, context, lane)

    async def PackStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PackStreamRequest], context: _Context
    ) -> AsyncIterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one; every message is answered before the next is read."""
        async with self._counted_call(context) as memory, reading_out(request_iterator):
            with self._counted_stream("PackStream"):
                session = self._backend.pack_session()
                while True:
                    message = await self._unless_draining(asyncio.ensure_future(anext(request_iterator, None)))
                    if message is None:
                        return
                    answer = self._run_in_lane(self._lanes.packing, session.answer_in_slices, message, memory)
                    response = await self._unless_draining(asyncio.ensure_future(answer))
                    CALLER.get().check_again()
                    with self._sending():
                        yield response

    async def StreamBins(  # noqa: N802
        self, request: pb.StreamBinsRequest, context: _Context
    ) -> AsyncIterator[pb.StreamBinsResponse]:
        """Streams a header and blocks, making the next block while one is sent.

        The first block comes with the header, unless something has to be arranged for it.
        """
        started = time.perf_counter()
        async with self._counted_call(context) as memory:
            with self._counted_stream("StreamBins"):
                stream, messages = await self._unless_draining(self._open_in_lane(_admitted(request)))
                ahead: deque[_Block] = deque()
                num_blocks = 0
                try:
                    while messages:
                        num_bytes = messages[-1].ByteSize()
                        await memory.hold(BLOCKS_IN_MEMORY * num_bytes if num_bytes > LARGE_BLOCK_BYTES else 0)
                        if num_blocks and not ahead:
                            ahead.extend(self._begin_next_block(stream, num_bytes))
                        CALLER.get().check_again()
                        sent_at = time.monotonic()
                        for message in messages:  # header and first block, then one block at a time
                            with self._sending():
                                yield message
                            if not message.HasField("block"):
                                continue
                            num_blocks += 1
                            if num_blocks == 1:
                                self._metrics.first_block.observe(time.perf_counter() - started)
                            self._count(request.dataset, message.block)
                        messages = await self._wait_for_next_block(stream, ahead, num_bytes, sent_at)
                finally:
                    stream.close()
                    for each in ahead:
                        each.cancel()

    async def _answer(
        self, method: Callable[[_Request], TimeSlices[_Result]], request: _Request, context: _Context, lane: Lane
    ) -> _Result:
        async with self._counted_call(context) as memory:
            answer = await self._run_in_lane(lane, method, request, memory)
        return answer  # noqa: RET504

    async def _run_in_lane(
        self, lane: Lane, method: Callable[[_Request], TimeSlices[_Result]], request: _Request, memory: MemoryShare
    ) -> _Result:
        """Runs a method in a lane. Its memory counts until the client has read the answer, or sends another message."""
        request_bytes = DECODED_BYTES_PER_BYTE * _admitted(request).ByteSize()
        await memory.hold(request_bytes)
        return await lane.run(method(request), lambda num_bytes: memory.hold(request_bytes + num_bytes))

    def _open_in_lane(self, request: pb.StreamBinsRequest) -> "asyncio.Future[_Opened]":
        """Opens a stream; in another lane if its request takes long to check."""
        is_long = request.ByteSize() > LONG_REQUEST_BYTES
        lane = self._lanes.arranging if is_long else self._lanes.small_blocks
        if request.with_tokens:
            lane = self._lanes.tokens
        return lane.submit(self._open_with_first_messages, request)

    def _open_with_first_messages(self, request: pb.StreamBinsRequest) -> _Opened:
        """Opens a stream, and makes its first messages: the header, and a block if one can be made at once."""
        stream = self._backend.open_stream(request)
        messages = [pb.StreamBinsResponse(header=stream.header)]
        if stream.is_arranged() and (steps := stream.take()) and (block := self._make_timed(stream, steps)) is not None:
            messages.append(block)
        return stream, messages

    async def _wait_for_next_block(
        self, stream: OpenStream, ahead: deque[_Block], num_bytes: int, sent_at: float
    ) -> list[pb.StreamBinsResponse]:
        """Waits for the next block; returns it in a list, which is empty if the stream has ended.

        Args:
            stream: whose block it is.
            ahead: blocks that are being made, the next one first; further ones are added.
            num_bytes: size of the block before.
            sent_at: when sending the block before began, by `time.monotonic`.
        """
        if not ahead:  # after the first block, the next one is begun only now: it would have slowed down the first
            ahead.extend(self._begin_next_block(stream, num_bytes))
        if not ahead:
            return []
        upcoming = ahead.popleft()
        is_being_arranged = isinstance(upcoming, asyncio.Task)  # of `_arrange_and_make`
        is_being_made = not upcoming.done() and not is_being_arranged
        if is_being_made and SMALL_BLOCK_BYTES <= num_bytes <= LARGE_BLOCK_BYTES:
            ahead.extend(self._begin_next_block(stream, num_bytes))  # the client waits: two threads make two
        block = await self._unless_draining(upcoming)
        if block is None:
            return []
        if time.monotonic() - sent_at > LOOK_AGAIN_SECONDS:
            looking = self._lanes.small_blocks.submit(stream.is_current)
            if not await self._unless_draining(looking):
                return []
        return [block]

    def _begin_next_block(self, stream: OpenStream, num_bytes: int) -> Iterator[_Block]:
        """Begins to make the block after one of `num_bytes`; yields its future, or nothing after the last block."""
        lane = self._lanes.small_blocks if num_bytes < SMALL_BLOCK_BYTES else self._lanes.streams
        if stream.with_tokens:
            lane = self._lanes.tokens
        if not (steps := stream.take()):
            return
        if stream.is_arranged(steps):
            yield lane.submit(self._make_timed, stream, steps)
        else:
            yield asyncio.ensure_future(self._arrange_and_make(stream, steps, lane))

    async def _arrange_and_make(self, stream: OpenStream, steps: range, lane: Lane) -> pb.StreamBinsResponse | None:
        """Arranges a block's steps in a lane of their own, so that other streams' blocks do not wait; then makes it."""
        await self._lanes.arranging.run(stream.arrange_in_slices(steps), _hold_nothing)
        return await lane.submit(self._make_timed, stream, steps)

    def _make_timed(self, stream: OpenStream, steps: range) -> pb.StreamBinsResponse | None:
        started = time.perf_counter()
        block = stream.make(steps)
        self._metrics.block.observe(time.perf_counter() - started)
        return block

    def _count(self, dataset: str, block: pb.StreamBlock) -> None:
        self._metrics.bins.labels(dataset).inc(len(block.bins.templates) // 4)  # a uint32 for each bin
        self._metrics.sequences.labels(dataset).inc(block.num_sequences)
        self._metrics.tokens.labels(dataset).inc(block.num_tokens)

    @asynccontextmanager
    async def _counted_call(self, context: _Context) -> AsyncIterator[MemoryShare]:
        """Counts a call, turns what it raises into a status, and gives it memory until it is over."""
        self._num_calls += 1
        memory = self._memory.share()
        aborts: list[grpc.aio.AbortError] = []

        def end(_: Any) -> None:
            self._num_calls -= 1
            memory.end()
            # gRPC keeps the error with the call, in a reference cycle: its traceback would keep request and answer.
            for each in aborts:
                each.__traceback__ = each.__context__ = None
            aborts.clear()

        context.add_done_callback(end)  # type: ignore[arg-type]
        try:
            yield memory
        except Exception as error:
            refusal = CALLER.get().visible_error(refusal_of(error))
            self._metrics.count_refusal(refusal)
            try:
                await abort(context, refusal)
            except grpc.aio.AbortError as aborted:
                aborts.append(aborted)
                raise

    @contextmanager
    def _counted_stream(self, method: str) -> Iterator[None]:
        """Counts a stream while it is open; refuses it if the limit is reached."""
        if not self._limit.take():
            raise ServiceError(
                pb.ERROR_REASON_TOO_MANY_STREAMS,
                f"{self._limit.most_streams} streams are open, which is this server's limit",
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
        """Counts a stream while it waits for its client."""
        self._num_sending += 1
        try:
            yield
        finally:
            self._num_sending -= 1

    async def _unless_draining(self, work: "asyncio.Future[_Result]") -> _Result:
        """Returns the result of work; refuses the call if the server drains first.

        Otherwise idle streams would last until the end of the grace period.
        """
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
    """Counts no memory in the budget: an assignment itself bounds how much is arranged at once."""


def _in_one_slice(method: Callable[[_Request], _Result]) -> Callable[[_Request], TimeSlices[_Result]]:
    """Returns a short method in the form of time slices: a single one."""

    def in_one_slice(request: _Request) -> TimeSlices[_Result]:
        return method(request)
        yield  # never reached; makes `in_one_slice` a generator

    return in_one_slice


def _admitted(request: _Request) -> _Request:
    """Returns the request itself, if this client may send it.

    Raises:
        ServiceError: the token is not for it, it skips too many ranges, or the client's release does not fit.
    """
    CALLER.get().check_request(request)
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest | pb.LocateSequencesRequest):
        check_num_skips(request.skip)  # before anything is computed from them
    if isinstance(request, pb.StreamBinsRequest | pb.GetBinsRequest):
        check_wire_version(request.wire_version)
    elif isinstance(request, pb.PackStreamRequest) and request.HasField("options"):
        check_wire_version(request.options.wire_version)
    return request
