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

from packhorse.server.base.cores import available_cores
from packhorse.server.base.pieces import Pace, Pieces
from packhorse.server.watching.metrics import Metrics

_Result = TypeVar("_Result")

SMALL_ANSWER_BYTES = 64 << 10
"""Work that needs no more goes on to its next piece at once: each change of threads costs a small answer more than its
bins do. What it needs is told to the budget when its turn is over."""


class LaneFullError(Exception):
    """As many requests as may are in the lane."""


class Lane:
    """Threads, and a queue of time slices of work. Used from one event loop only.

    Args:
        name: of the threads.
        threads: how many pieces run at once, at least 1.
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
        """Tells metrics from now on how much waits here, and how long."""
        self._waiting, self._wait = metrics.lane_waiting.labels(self.name), metrics.lane_wait.labels(self.name)

    def submit(self, work: Callable[..., _Result], *arguments: Any) -> "asyncio.Future[_Result]":
        """Runs one piece in a thread. Cancelled before a thread takes it up, it never runs.

        Args:
            work: is called in the thread.
            arguments: of it.
        """
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

    async def run(self, pieces: Pieces[_Result], hold: Callable[[int], Awaitable[None]]) -> _Result:
        """Runs pieces turn by turn; between turns others have theirs. A small answer takes a single turn.

        A request whose caller leaves is cancelled, and so ends with the turn that is running.

        Args:
            pieces: the work.
            hold: is told after every turn the bytes that the work needs from then on, and may refuse.

        Raises:
            LaneFullError: too many requests are in the lane.
        """
        if self._num_requests == self._most_requests:
            raise LaneFullError
        self._num_requests += 1
        try:
            while True:
                turn = await self.submit(_take_turn, pieces)
                if turn.num_bytes is not None:
                    await hold(turn.num_bytes)
                if turn.is_done:
                    return turn.result
        finally:
            self._num_requests -= 1

    def close(self) -> None:
        """Drops what waits. What runs goes on: nothing can end a kernel."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A server's lanes."""

    streams: Lane
    """Blocks of StreamBins. Each stream has one piece here or in `small_blocks` at most, so the limit of streams bounds
    both queues."""
    small_blocks: Lane
    """Blocks that are mostly Python: a stream's first ones, and all of them where very many streams are open. One
    thread makes them: of several, all but one would wait for the interpreter, which costs more than it gains."""
    arranging: Lane
    """What a stream takes before its block can be made, where that is long: windows of a balance and last steps that
    are arranged for all ranks at once, and long requests. A stream is in no other lane meanwhile."""
    answers: Lane
    """Single answers: ListDatasets, GetDataset, GetBins, LocateSequences."""
    packing: Lane
    """PackStream, and PackSequences with packers that take a second or two at most."""
    searching: Lane
    """PackSequences with packers that search until their time is over. Few may wait, as each takes its time."""

    @classmethod
    def for_this_machine(cls, num_processes: int = 1) -> "Lanes":
        """Lanes that leave streams most of the processors that this process may use, of so many alike."""
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
        """Tells metrics from now on how much waits in every lane, and how long."""
        for field in fields(self):
            getattr(self, field.name).measure(metrics)

    def close(self) -> None:
        """Drops what waits in every lane."""
        for field in fields(self):
            getattr(self, field.name).close()


class _Turn(NamedTuple):
    """What came of a turn."""

    num_bytes: int | None
    """That the work needs from now on; None where it did not say."""
    is_done: bool = False
    result: Any = None


def _take_turn(pieces: Pieces[Any]) -> _Turn:
    """Runs pieces until they are done, need more than SMALL_ANSWER_BYTES, or have lasted as long as one may."""
    pace = Pace()
    num_bytes = None
    while True:
        try:
            num_bytes = next(pieces)
        except StopIteration as end:
            return _Turn(num_bytes, is_done=True, result=end.value)
        if num_bytes > SMALL_ANSWER_BYTES or pace.is_over():
            return _Turn(num_bytes)


def _be_nice(niceness: int) -> None:
    if niceness and sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.nice(niceness)  # of this thread alone, and nicer than the process already is: anything else takes privileges
