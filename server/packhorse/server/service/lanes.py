"""What requests may take: threads of their own kind (lanes), bytes of a common budget, and open streams.

Owns how many threads a lane has, their niceness, how many requests may wait for them, and counting what they take
together, also over several processes. Leaves what runs in a lane and the refusals to `servicer`, how much a request
needs to `backend`, and the largest message to `methods.requests`.
"""

import asyncio
import mmap
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prometheus_client import Gauge, Histogram

from packhorse.server.base.machine import available_cores
from packhorse.server.base.time_slices import Pace, TimeSlices
from packhorse.server.watching.metrics import Metrics

_Result = TypeVar("_Result")

SMALL_ANSWER_BYTES = 64 << 10
"""Work that needs no more continues with its next slice at once: a change of threads costs a small answer more than its
bins do. The budget learns of the bytes when the thread is given up."""


class LaneFullError(Exception):
    """The lane has as many requests as it may."""


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
        self._waiting: Gauge | None = None
        self._wait: Histogram | None = None
        self._executor = ThreadPoolExecutor(threads, name, _be_nice, (niceness,))
        self._most_requests = most_requests
        self._num_requests = 0

    def measure(self, metrics: Metrics) -> None:
        """From now on, measures how much waits here, and how long."""
        self._waiting, self._wait = metrics.lane_waiting.labels(self.name), metrics.lane_wait.labels(self.name)

    def submit(self, work: Callable[..., _Result], *arguments: Any) -> "asyncio.Future[_Result]":
        """Runs one slice, `work`, in a thread. Cancelled before a thread takes it, it never runs."""
        waiting, wait = self._waiting, self._wait
        if waiting is None or wait is None:
            return asyncio.wrap_future(self._executor.submit(work, *arguments))
        since = time.perf_counter()
        waiting.inc()

        def run() -> _Result:
            waiting.dec()
            wait.observe(time.perf_counter() - since)
            return work(*arguments)

        future = self._executor.submit(run)
        future.add_done_callback(lambda done: waiting.dec() if done.cancelled() else None)
        return asyncio.wrap_future(future)

    async def run(self, slices: TimeSlices[_Result], hold: Callable[[int], Awaitable[None]]) -> _Result:
        """Runs slices one by one; between them other requests have a thread. A small answer keeps its thread.

        A request whose client leaves is cancelled, and so ends with the slice that is running.

        Args:
            slices: the work.
            hold: is called with the bytes that the work needs from then on, and may refuse.

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
        """Drops what waits. What runs continues: nothing can end a kernel."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A server's lanes."""

    streams: Lane
    """Blocks of StreamBins. Each stream has at most one block here or in `small_blocks`, so the limit of streams bounds
    both queues."""
    small_blocks: Lane
    """Blocks that are mostly Python: a stream's first ones, and all of them when very many streams are open. One thread
    makes them: of several, all but one would wait for the interpreter, which costs more than it gains."""
    arranging: Lane
    """What a stream needs before its block can be made, if that takes long: optimizer steps and last steps that are
    arranged for all ranks at once, and long requests. Meanwhile the stream is in no other lane."""
    answers: Lane
    """Single answers: ListDatasets, GetDataset, GetBins, LocateSequences."""
    packing: Lane
    """PackStream, and PackSequences with packers that take a second or two at most."""
    searching: Lane
    """PackSequences with packers that search until their time is over. Few may wait, as each takes its time."""

    @classmethod
    def for_this_machine(cls, num_processes: int = 1) -> "Lanes":
        """Returns lanes that leave streams most of this process's share of the processors."""
        cores = -(-available_cores() // num_processes)
        others = max(1, cores // 2)
        return cls(
            streams=Lane("streams", threads=cores),
            small_blocks=Lane("small-blocks", threads=1),
            arranging=Lane("arranging", threads=others, niceness=5),
            answers=Lane("answers", threads=others, most_requests=256, niceness=5),
            packing=Lane("packing", threads=others, most_requests=256, niceness=10),
            searching=Lane("searching", threads=max(1, cores // 4), most_requests=max(8, 2 * cores), niceness=10),
        )

    def measure(self, metrics: Metrics) -> None:
        """From now on, measures how much waits in every lane, and how long."""
        for field in fields(self):
            getattr(self, field.name).measure(metrics)

    def close(self) -> None:
        """Drops what waits in every lane."""
        for field in fields(self):
            getattr(self, field.name).close()


class _Progress(NamedTuple):
    """How far some slices brought the work."""

    num_bytes: int | None
    """That the work needs from now on; None where it did not say."""
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
    if niceness and sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.nice(niceness)  # of this thread alone, and nicer than the process already is: anything else takes privileges


DECODED_BYTES_PER_BYTE = 8
"""A decoded request takes at most this multiple of its size on the wire: a number of one byte becomes one of eight."""


class OutOfMemoryBudgetError(Exception):
    """Other requests hold the memory, and did not give it back in time."""


class MemoryBudget:
    """Bytes that requests may hold together. Used from one event loop only.

    Args:
        total_bytes: of all requests.
        wait_seconds: how long a request waits for others to give back what it needs.
    """

    def __init__(self, total_bytes: int, wait_seconds: float) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._wait_seconds = wait_seconds
        self._given_back = asyncio.Event()

    def share(self) -> "MemoryShare":
        """Returns a request's share, empty at first."""
        return MemoryShare(self)

    async def take(self, num_bytes: int) -> None:
        """Takes bytes, waiting for them if need be.

        Raises:
            OutOfMemoryBudgetError: they cannot be had within `wait_seconds`.
        """
        try:
            if self.held_bytes + num_bytes > self.total_bytes:
                async with asyncio.timeout(self._wait_seconds):
                    while self.held_bytes + num_bytes > self.total_bytes:
                        self._given_back.clear()
                        await self._given_back.wait()
        except TimeoutError:
            raise OutOfMemoryBudgetError from None
        self.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Gives bytes back."""
        self.held_bytes -= num_bytes
        self._given_back.set()


class MemoryShare:
    """What one request holds of a budget, until the end of the `with` block that enters it."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    async def hold(self, num_bytes: int) -> None:
        """Holds this number of bytes from now on, more or fewer than before.

        Raises:
            OutOfMemoryBudgetError: the missing bytes cannot be had in time; the share stays what it was.
        """
        if num_bytes > self._held_bytes:
            await self._budget.take(num_bytes - self._held_bytes)
        else:
            self._budget.give_back(self._held_bytes - num_bytes)
        self._held_bytes = num_bytes

    def end(self) -> None:
        """Gives everything back."""
        self._budget.give_back(self._held_bytes)
        self._held_bytes = 0

    def __enter__(self) -> "MemoryShare":
        """Returns the share."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gives everything back."""
        self.end()


class StreamLimit:
    """Counts open streams, of one process or of several.

    Each process writes its own number into a file that all of them map, and reads the others'. No lock is needed: a
    process counts its stream first and then looks at the sum. If two ask for the last permit at one moment, both may be
    refused, but never both admitted.

    Example:
        >>> limit = StreamLimit(1)
        >>> limit.take(), limit.take()
        (True, False)

    Args:
        most: streams at once, of all processes.
        path: the file, as `make_shared_limit` made it; None for one process.
        slot: the index of this process's number.
    """

    def __init__(self, most: int, path: Path | None = None, slot: int = 0) -> None:
        self.most = most
        self._slot = slot
        if path is None:
            self._numbers = memoryview(bytearray(8)).cast("q")
        else:
            with path.open("r+b") as file:
                self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @property
    def num_open(self) -> int:
        """Streams of this process."""
        return self._numbers[self._slot]

    def take(self) -> bool:
        """Counts one more, or returns False where the limit is reached."""
        self._numbers[self._slot] += 1
        if sum(self._numbers) <= self.most:
            return True
        self._numbers[self._slot] -= 1
        return False

    def give_back(self) -> None:
        """Counts one less."""
        self._numbers[self._slot] -= 1

    def clear(self) -> None:
        """Forgets the streams of the slot: its process has ended."""
        self._numbers[self._slot] = 0


def make_shared_limit(path: Path, num_processes: int) -> None:
    """Writes the file through which processes count their streams."""
    path.write_bytes(bytes(8 * num_processes))
