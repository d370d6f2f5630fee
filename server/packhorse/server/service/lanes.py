"""Lanes: requests of one kind run in threads of their own, so that no kind makes another wait.

Owns how many threads a lane has, their niceness, and how many requests may wait for them. Leaves what runs there to
`servicer`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from prometheus_client import Gauge, Histogram

from packhorse.jobs import available_cores
from packhorse.server.base.time_slices import Pace, TimeSlices
from packhorse.server.watching.metrics import Metrics

_Result = TypeVar("_Result")

SMALL_ANSWER_BYTES = 64 << 10
"""Memory up to which work continues with its next slice in the same thread: for a small answer, a change of threads
costs more than its bins. The bytes count in the budget only when the thread is given up."""


class LaneFullError(Exception):
    """The lane has as many requests as it may have."""


class Lane:
    """Threads, and a queue of time slices of work. Used from one event loop only.

    Args:
        name: of the threads.
        threads: how many slices run at once, at least 1.
        most_requests: how many requests may be in the lane, running or waiting; None for any number.
        niceness: of the threads, 0 to 19, on Linux. A nice thread gives way to others that want the processor: at 10
            it gets about a tenth of another's share.
    """

    def __init__(self, name: str, *, threads: int, most_requests: int | None = None, niceness: int = 0) -> None:
        self.name = name
        self._num_waiting: Gauge | None = None
        self._wait_seconds: Histogram | None = None
        self._executor = ThreadPoolExecutor(threads, name, _be_nice, (niceness,))
        self._most_requests = most_requests
        self._num_requests = 0

    def measure(self, metrics: Metrics) -> None:
        """Begins to measure how many slices wait for a thread, and how long."""
        self._num_waiting = metrics.lane_waiting.labels(self.name)
        self._wait_seconds = metrics.lane_wait.labels(self.name)

    def submit(self, work: Callable[..., _Result], *arguments: Any) -> "asyncio.Future[_Result]":
        """Runs one slice, `work`, in a thread. If it is cancelled before a thread takes it, it never runs."""
        num_waiting, wait_seconds = self._num_waiting, self._wait_seconds
        if num_waiting is None or wait_seconds is None:
            return asyncio.wrap_future(self._executor.submit(work, *arguments))
        since = time.perf_counter()
        num_waiting.inc()

        def run() -> _Result:
            num_waiting.dec()
            wait_seconds.observe(time.perf_counter() - since)
            return work(*arguments)

        future = self._executor.submit(run)
        future.add_done_callback(lambda done: num_waiting.dec() if done.cancelled() else None)
        return asyncio.wrap_future(future)

    async def run(self, slices: TimeSlices[_Result], hold: Callable[[int], Awaitable[None]]) -> _Result:
        """Runs slices one by one, with other requests' slices between them. A small answer keeps its thread.

        A request whose client leaves is cancelled, and then ends after the slice that is running.

        Args:
            slices: the work.
            hold: called with the bytes that the work needs from then on; may raise, which ends the work.

        Raises:
            LaneFullError: too many requests are in the lane.
        """
        if self._num_requests == self._most_requests:
            raise LaneFullError
        self._num_requests += 1
        try:
            while True:
                progress = await self.submit(_run_slices, slices)
                if progress.num_bytes is not None:
                    await hold(progress.num_bytes)
                if progress.is_done:
                    return progress.result
        finally:
            self._num_requests -= 1

    def close(self) -> None:
        """Drops the slices that wait. Those that run continue, because nothing can end a kernel."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A server's lanes."""

    streams: Lane
    """Blocks of StreamBins. A stream has at most two here or in `small_blocks`, so the limit of streams bounds both
    queues."""
    small_blocks: Lane
    """Small blocks, which are mostly Python: a stream's first ones, and all of them when very many streams are open.
    One thread makes them: of several, all but one would wait for the interpreter, which costs more than it gains."""
    tokens: Lane
    """Blocks and single answers with tokens, which may wait for a disk or a store."""
    arranging: Lane
    """Long work before a stream's block can be made: optimizer steps and last steps that are arranged for all ranks at
    once, and checks of long requests. Meanwhile the stream is in no other lane."""
    answers: Lane
    """Single answers: ListDatasets, GetDataset, GetBins, LocateSequences."""
    packing: Lane
    """PackStream, and PackSequences with packers that take a second or two at most."""
    searching: Lane
    """PackSequences with packers that search until their time is over. Few may wait, because each takes so long."""

    @classmethod
    def for_this_machine(cls, num_processes: int = 1) -> "Lanes":
        """Returns lanes that leave streams most of this process's share of the processors."""
        cores = -(-available_cores() // num_processes)  # rounded up
        others = max(1, cores // 2)
        return cls(
            streams=Lane("streams", threads=cores),
            small_blocks=Lane("small-blocks", threads=1),
            tokens=Lane("tokens", threads=2 * cores, niceness=5),
            arranging=Lane("arranging", threads=others, niceness=5),
            answers=Lane("answers", threads=others, most_requests=256, niceness=5),
            packing=Lane("packing", threads=others, most_requests=256, niceness=10),
            searching=Lane("searching", threads=max(1, cores // 4), most_requests=max(8, 2 * cores), niceness=10),
        )

    def measure(self, metrics: Metrics) -> None:
        """Begins to measure how many slices wait in every lane, and how long."""
        for field in fields(self):
            getattr(self, field.name).measure(metrics)

    def close(self) -> None:
        """Drops the slices that wait in every lane."""
        for field in fields(self):
            getattr(self, field.name).close()


class _Progress(NamedTuple):
    """The state of some work after a thread ran slices of it."""

    num_bytes: int | None
    """Bytes that the work needs from now on; None if it yielded no number."""
    is_done: bool = False
    result: Any = None


def _run_slices(slices: TimeSlices[Any]) -> _Progress:
    """Runs slices until they are done, need more than SMALL_ANSWER_BYTES, or have lasted as long as one may."""
    pace = Pace()
    num_bytes = None
    while True:
        try:
            num_bytes = next(slices)
        except StopIteration as end:
            return _Progress(num_bytes, is_done=True, result=end.value)
        if num_bytes > SMALL_ANSWER_BYTES or pace.is_over():
            return _Progress(num_bytes)


def _be_nice(niceness: int) -> None:
    """Makes a new thread of a lane nicer than the process; other systems than Linux have no niceness of threads."""
    if niceness and sys.platform == "linux":
        os.nice(niceness)  # is added to the process's own, because lowering that takes privileges
