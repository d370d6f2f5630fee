"""The threads of a lane, and the order in which they take up work.

Owns both; leaves whose work it is, and how much of it there may be, to `lanes`.
"""

import heapq
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Threads:
    """Threads that take up work in the order in which it came, but for what has a head start.

    Example:
        >>> threads = Threads("example", 1)
        >>> threads.submit(sum, [1, 2]).result()
        3
        >>> threads.close()

    Args:
        name: of the threads.
        number: of threads, at least 1.
        niceness: of the threads, beyond the process's own, 0 to 19, on Linux.
    """

    def __init__(self, name: str, number: int, niceness: int = 0) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Future[Any], Callable[[], Any]]] = []  # a heap
        self._numbers = itertools.count()
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()  # one for each that waits; False ends a thread
        self._number = number
        self._num_running = 0
        for each in range(number):
            thread = threading.Thread(target=self._serve, args=(niceness,), name=f"{name}_{each}", daemon=True)
            thread.start()

    def submit(
        self, work: Callable[..., _Result], *arguments: Any, head_start_seconds: float = 0.0
    ) -> "Future[_Result]":
        """Runs work in a thread; cancelled before its turn, it never runs.

        Args:
            work: is called in the thread.
            arguments: of it.
            head_start_seconds: it goes before what came so much earlier. What never stops coming can so hold up others
                no longer than that.
        """
        future: Future[_Result] = Future()
        place = time.monotonic() - head_start_seconds
        with self._lock:
            heapq.heappush(self._waiting, (place, next(self._numbers), future, lambda: work(*arguments)))
        self._turns.put(True)
        return future

    @property
    def is_short_of_work(self) -> bool:
        """Whether a thread would soon be idle: no more than one piece of work for each is running or waiting."""
        with self._lock:
            return self._num_running + len(self._waiting) <= self._number

    def close(self) -> None:
        """Drops what waits, and ends the threads once they have done what they are at."""
        with self._lock:
            dropped, self._waiting = self._waiting, []
        for *_, future, _ in dropped:
            future.cancel()
        for _ in range(self._number):
            self._turns.put(False)

    def _serve(self, niceness: int) -> None:
        _be_nice(niceness)
        while self._turns.get():
            self._take_one()

    def _take_one(self) -> None:
        with self._lock:
            if not self._waiting:  # dropped
                return
            *_, future, work = heapq.heappop(self._waiting)
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(self._done(work))
        except BaseException as error:
            future.set_exception(error)
        finally:
            del future, work  # else an error and this frame would keep each other

    def _done(self, work: Callable[[], _Result]) -> _Result:
        """Does work, which counts as running until just before anyone sees what came of it."""
        with self._lock:
            self._num_running += 1
        try:
            return work()
        finally:
            with self._lock:
                self._num_running -= 1


def _be_nice(niceness: int) -> None:
    if niceness and sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.nice(niceness)  # of this thread alone, and nicer than the process already is: anything else takes privileges
