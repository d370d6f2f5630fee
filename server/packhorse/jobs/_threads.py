"""Tasks in threads of this process: nothing is started, imported or sent, so they pay at any size.

Owns who takes the next task, and how threads end. For tasks that release the interpreter (compiled loops, NumPy,
pyarrow); what is plain Python wants processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from packhorse.jobs.engines import held_signals, results_in_order

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_END_SECONDS = 2.0
"""How long threads may finish the tasks that they are at when the work is given up; a store may stall for longer."""


class ThreadEngine:
    """Runs tasks in threads; made by `open_threads`."""

    are_apart = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._left: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`."""
        futures: list[Future[_Result]] = [Future() for _ in tasks]
        self._left.extend(zip(futures, (partial(function, task) for task in tasks), strict=True))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        with held_signals():  # which are for the thread that waits
            for _ in range(min(self.workers, len(tasks))):
                # Daemons: a task that does not end in time must not keep the process.
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        return results_in_order(futures)

    def end(self) -> None:
        """Lets nobody begin another task, and waits a little for those that are being done."""
        self._left.clear()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while True:
            try:
                future, task = self._left.popleft()
            except IndexError:
                return
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)


@contextmanager
def open_threads(workers: int) -> Iterator[ThreadEngine]:
    """Gives an engine of threads, which end with it.

    Example:
        >>> with open_threads(workers=2) as engine:
        ...     list(engine.map(abs, [-3, 2]))
        [3, 2]

    Args:
        workers: at least 1.
    """
    engine = ThreadEngine(workers)
    try:
        yield engine
    finally:
        engine.end()
