"""Lanes: requests of one kind run in threads of their own, so that no kind makes another wait.

Owns how many threads a lane has, their niceness, and how many requests may wait for them. Leaves the threads to
`threads`, and what runs there to the servicer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from prometheus_client import Gauge, Histogram

from packhorse.server.arrivals import Arrivals
from packhorse.server.cores import available_cores
from packhorse.server.metrics import Metrics
from packhorse.server.pieces import Pace, Pieces
from packhorse.server.threads import Threads

_Result = TypeVar("_Result")

SMALL_ANSWER_BYTES = 64 << 10
"""Work that needs no more goes on to its next piece at once: each change of threads costs a small answer more than its
bins do. What it needs is told to the budget when its turn is over."""


OPENING_HEAD_START_SECONDS = 1.0
"""The first block of a stream goes before the next blocks of others, unless they have waited so much longer: a trainer
has its next block at hand, and nothing before the first."""


class LaneFullError(Exception):
    """As many requests as may are in the lane."""


class Queued:
    """One piece that waits in a lane, as metrics count it: one of the two methods is called, once.

    Args:
        waiting: how many wait; None where nothing is measured.
        wait: how long they did.
    """

    def __init__(self, waiting: Gauge | None, wait: Histogram | None) -> None:
        self._waiting, self._wait = waiting, wait
        self._since = time.perf_counter()
        if waiting is not None:
            waiting.inc()

    def begin(self) -> None:
        """It is done from now on."""
        self.leave()
        if self._wait is not None:
            self._wait.observe(time.perf_counter() - self._since)

    def leave(self) -> None:
        """It will not be done."""
        if self._waiting is not None:
            self._waiting.dec()


class Lane:
    """Threads, and a queue of pieces of work. Used from one event loop only.

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
        self._threads = Threads(name, threads, niceness)
        self._arrivals = Arrivals()
        self._most_requests = most_requests
        self._num_requests = 0

    def measure(self, metrics: Metrics) -> None:
        """Tells metrics from now on how much waits here, and how long."""
        self._waiting, self._wait = metrics.lane_waiting.labels(self.name), metrics.lane_wait.labels(self.name)

    def queued(self) -> "Queued":
        """Counts one piece as waiting from now on, for whoever hands several over by one `submit`."""
        return Queued(self._waiting, self._wait)

    def submit(
        self,
        work: Callable[..., _Result],
        *arguments: Any,
        head_start_seconds: float = 0.0,
        is_counted: bool = True,
    ) -> "asyncio.Future[_Result]":
        """Runs one piece in a thread. Cancelled before its turn, it never runs.

        Args:
            work: is called in the thread.
            arguments: of it.
            head_start_seconds: it goes before what came so much earlier.
            is_counted: whether metrics count it as one piece; not where `queued` has counted those it is made of.
        """
        if self._waiting is None or not is_counted:
            future = self._threads.submit(work, *arguments, head_start_seconds=head_start_seconds)
            return self._arrivals.awaited(future)
        queued = self.queued()

        def run() -> _Result:
            queued.begin()
            return work(*arguments)

        future = self._threads.submit(run, head_start_seconds=head_start_seconds)
        future.add_done_callback(lambda done: queued.leave() if done.cancelled() else None)
        return self._arrivals.awaited(future)

    @property
    def is_short_of_work(self) -> bool:
        """Whether a thread would soon be idle."""
        return self._threads.is_short_of_work

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
        self._threads.close()


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A server's lanes."""

    streams: Lane
    """Blocks of StreamBins. Each stream has one piece here or in `small_blocks` at most, so the limit of streams bounds
    both queues; where a thread would soon be idle, it has a few more."""
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
