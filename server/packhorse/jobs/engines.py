"""Where tasks run: in this process, or in several local ones.

Owns the one thing that a long job asks of an engine, `map`. Leaves what a task is to the job: its functions are
top-level, in modules that can be imported, and its tasks plain picklable descriptions, so that any engine can run them.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Protocol, TypeVar

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What Ctrl-C, a scheduler and a closed terminal send."""


@contextmanager
def held_signals(numbers: Collection[signal.Signals] = ENDING_SIGNALS) -> Iterator[None]:
    """Holds signals back from this thread; threads and processes that it starts meanwhile never get them.

    Example:
        >>> with held_signals():
        ...     signal.raise_signal(signal.SIGTERM)  # comes when the block ends
        ...     signal.sigtimedwait({signal.SIGTERM}, 1).si_signo == signal.SIGTERM  # taken here instead
        True

    Args:
        numbers: which.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Engine(Protocol):
    """Runs independent tasks."""

    workers: int
    """How many it runs at a time."""
    are_apart: bool
    """Whether tasks may run on different machines, so that what one writes must reach the disk before another reads."""

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """Begins the tasks, and yields their results in order; raises what the first failing task in that order raised.

        Where nothing runs beside this thread, a task begins when its result is asked for.
        """
        ...


class InlineEngine:
    """Runs tasks one after the other, here."""

    workers = 1
    are_apart = False

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`."""
        return map(function, tasks)


_SIGNALS_SECONDS = 0.2
"""How often the wait for a task ends for a moment: a signal that another thread took would not end it."""


def results_in_order(futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
    """Yields what futures come to, in their order; a signal ends the wait for one of them.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as threads:
        ...     list(results_in_order([threads.submit(abs, -1), threads.submit(abs, 2)]))
        [1, 2]

    Args:
        futures: of tasks that were submitted.
    """
    for future in futures:
        while not wait((future,), timeout=_SIGNALS_SECONDS).done:
            pass
        yield future.result()


class ProcessEngine:
    """Runs tasks in local processes; made by `open_engine`."""

    are_apart = False

    def __init__(self, executor: ProcessPoolExecutor, workers: int) -> None:
        self._executor = executor
        self.workers = workers

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`.

        Raises:
            ChildProcessError: a process died, for example killed for memory.
        """
        # Processes start here; Ctrl-C is for this one, which ends them.
        with _deaths_said(), held_signals([signal.SIGINT]):
            return self._results([self._executor.submit(function, task) for task in tasks])

    def _results(self, futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
        with _deaths_said():
            yield from results_in_order(futures)


@contextmanager
def _deaths_said() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process died before its task was done (out of memory, perhaps); try fewer workers, or one"
        ) from None


@contextmanager
def open_engine(workers: int) -> Iterator[Engine]:
    """Gives an engine of `workers` processes (1: none but this one) and ends them afterwards.

    Example:
        >>> with open_engine(workers=1) as engine:
        ...     list(engine.map(abs, [-3, 2]))
        [3, 2]

    Args:
        workers: at least 1.
    """
    if workers == 1:
        yield InlineEngine()
        return
    executor = ProcessPoolExecutor(workers, mp_context=_WorkerContext(), initializer=_end_with_parent)
    try:
        yield ProcessEngine(executor, workers)
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.kill()  # a task may take minutes, and nobody waits for it any more
        raise
    finally:
        executor.shutdown(cancel_futures=True)


class _Worker(SpawnProcess):
    """A spawned process that does not run the program's script anew, as others do.

    Tasks are of modules that can be imported, so nothing in the script is needed; and its own imports may take longer
    than the work.
    """

    def start(self) -> None:
        """See `multiprocessing.Process`."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(SpawnContext):
    """Spawns workers. They are not forked: a fork while Arrow's or Numba's threads hold locks can hang."""

    Process = _Worker


def _end_with_parent() -> None:
    """Ends this worker when the process that started it is gone, however that came to its end."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
