"""The gRPC face of the backend.

Owns threads, limits, draining, metrics and statuses; leaves what a request means to `backend`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import numpy as np

from packhorse.server.backend import Backend
from packhorse.server.faults import ServiceError
from packhorse.server.metrics import Metrics
from packhorse.server.status import STATUS_OF_REASON, reason_name, status_details
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

_LOG = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1.0

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PackingServicer(packing_pb2_grpc.PackingServiceServicer):
    """Answers from the backend, in the executor's threads.

    Each stream holds at most two blocks: the one being sent, and the next, made meanwhile. How fast a consumer reads
    changes nothing about that.

    Args:
        backend: answers requests.
        metrics: moves with them.
        executor: runs the kernels, which release the GIL.
        max_streams: streams open at once.
    """

    def __init__(self, backend: Backend, metrics: Metrics, executor: Executor, max_streams: int) -> None:
        self._backend = backend
        self._metrics = metrics
        self._executor = executor
        self._max_streams = max_streams
        self._num_streams = 0
        self._draining = False
        self._drained = asyncio.Event()

    def drain(self) -> None:
        """Ends every stream at its next block or message, idle ones at once, and refuses new ones."""
        self._draining = True
        self._drained.set()

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: _Context) -> pb.ListDatasetsResponse:  # noqa: N802
        """Lists the datasets that are served."""
        return await self._answer(self._backend.list_datasets, request, context)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.GetDatasetResponse:  # noqa: N802
        """Describes one dataset."""
        return await self._answer(self._backend.get_dataset, request, context)

    async def GetBins(self, request: pb.GetBinsRequest, context: _Context) -> pb.GetBinsResponse:  # noqa: N802
        """Returns the bins at any positions."""
        return await self._answer(self._backend.get_bins, request, context)

    async def LocateSequences(  # noqa: N802
        self, request: pb.LocateSequencesRequest, context: _Context
    ) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return await self._answer(self._backend.locate_sequences, request, context)

    async def PackSequences(self, request: pb.PackSequencesRequest, context: _Context) -> pb.PackSequencesResponse:  # noqa: N802
        """Packs the given lengths at once."""
        return await self._answer(self._backend.pack_sequences, request, context)

    async def PackStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PackStreamRequest], context: _Context
    ) -> AsyncIterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one; every message is answered before the next is read."""
        await self._enter(context)
        session = self._backend.pack_session()
        draining = asyncio.ensure_future(self._drained.wait())
        arriving: asyncio.Future[pb.PackStreamRequest | None] | None = None
        try:
            while True:
                arriving = asyncio.ensure_future(anext(request_iterator, None))
                await asyncio.wait((arriving, draining), return_when=asyncio.FIRST_COMPLETED)
                if self._draining:  # an idle stream would outlast the grace period
                    raise _shutting_down()
                message = arriving.result()
                if message is None:
                    return
                yield await asyncio.get_running_loop().run_in_executor(self._executor, session.answer, message)
        except ServiceError as error:
            await self._fail(error, context)
        except Exception as error:
            await self._fail(_incident(error), context)
        finally:
            self._leave()
            draining.cancel()
            if arriving is not None:
                arriving.cancel()

    async def StreamBins(  # noqa: N802
        self, request: pb.StreamBinsRequest, context: _Context
    ) -> AsyncIterator[pb.StreamBinsResponse]:
        """Streams a header and blocks, making the next block while one is sent."""
        started = time.perf_counter()
        await self._enter(context)
        messages = self._backend.stream_bins(request)
        upcoming = self._make(messages)
        num_blocks = 0
        try:
            while (message := await upcoming) is not None:
                if self._draining:
                    raise _shutting_down()
                upcoming = self._make(messages)
                yield message
                if message.HasField("block"):
                    num_blocks += 1
                    if num_blocks == 1:
                        self._metrics.first_block.observe(time.perf_counter() - started)
                    self._count(request.dataset, message.block.bins)
        except ServiceError as error:
            await self._fail(error, context)
        except Exception as error:
            await self._fail(_incident(error), context)
        finally:
            self._leave()
            upcoming.cancel()

    async def _enter(self, context: _Context) -> None:
        """Counts a stream, or refuses it; every one that was counted leaves again."""
        if self._num_streams >= self._max_streams:
            full = ServiceError(
                pb.ERROR_REASON_TOO_MANY_STREAMS,
                f"{self._max_streams} streams are open, which is this server's limit",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
            await self._fail(full, context)
        self._num_streams += 1
        self._metrics.active_streams.inc()

    def _leave(self) -> None:
        self._num_streams -= 1
        self._metrics.active_streams.dec()

    def _make(self, messages: Iterator[pb.StreamBinsResponse]) -> "asyncio.Future[pb.StreamBinsResponse | None]":
        def timed() -> pb.StreamBinsResponse | None:
            with self._metrics.block.time():
                return next(messages, None)

        return asyncio.get_running_loop().run_in_executor(self._executor, timed)

    def _count(self, dataset: str, bins: pb.Bins) -> None:
        lengths = np.frombuffer(bins.lengths, dtype="<i4")
        self._metrics.bins.labels(dataset).inc(len(bins.bin_ends) // 4)
        self._metrics.sequences.labels(dataset).inc(len(lengths))
        self._metrics.tokens.labels(dataset).inc(int(lengths.sum(dtype=np.int64)))

    async def _answer(self, method: Callable[[_Request], _Response], request: _Request, context: _Context) -> _Response:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, method, request)
        except ServiceError as error:
            await self._fail(error, context)
        except Exception as error:
            await self._fail(_incident(error), context)

    async def _fail(self, error: ServiceError, context: _Context) -> NoReturn:
        self._metrics.errors.labels(reason_name(error.reason)).inc()
        await context.abort(
            STATUS_OF_REASON[error.reason],
            error.message,
            trailing_metadata=(("grpc-status-details-bin", status_details(error)),),
        )
        raise AssertionError("abort always raises")


def _shutting_down() -> ServiceError:
    return ServiceError(pb.ERROR_REASON_SHUTTING_DOWN, "this server is shutting down; continue with another replica")


def _incident(error: Exception) -> ServiceError:
    """Hides an unexpected failure behind a number that stands beside its trace in the log."""
    incident = secrets.token_hex(4)
    _LOG.error("incident %s", incident, exc_info=error)
    return ServiceError(
        pb.ERROR_REASON_INTERNAL,
        f"the server failed; its log has the details under incident {incident}",
        {"incident": incident},
    )
