"""Where the tasks of a long job run: in the calling thread, in threads, in local processes, or on a Ray cluster.

Owns what an engine is, the engines of this machine, the choice between them, and how they end. Leaves Ray to `_ray`,
what a user says of all this to `execution`, and tasks to the job that has them. For any engine to run a task, its
function must be at the top level of a module that can be imported, and the task must be a description that can be
pickled. Recording finished tasks is in `packhorse.storage`.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, Protocol, TypeVar

from packhorse.jobs._ray import open_ray
from packhorse.jobs.execution import AnyEngineKind
from packhorse.jobs.results import results_in_order
from packhorse.jobs.signals import held_signals
from packhorse.parameters import message_of, parameter

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_END_SECONDS = 2.0
"""The time that threads have to finish their tasks when the engine ends; an object store may stall for longer."""


class Engine(Protocol):
    """Runs independent tasks."""

    workers: int
    """Number of tasks that run at a time."""
    are_apart: bool
    """Whether tasks may run on different machines. Files that a task writes must then be flushed to disk before another
    task reads them."""

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """Starts all tasks, and returns an iterator over their results in order.

        The iterator raises the error of a task that failed, when its turn comes. `InlineEngine` starts a task only when
        its result is requested.
        """
        ...


class InlineEngine:
    """Runs tasks one after the other, in the calling thread."""

    workers = 1
    are_apart = False

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`."""
        return map(function, tasks)


class ThreadEngine:
    """Runs tasks in threads of this process. No process is started and nothing is pickled, so even small jobs gain.

    For tasks that release the interpreter lock (compiled loops, NumPy, pyarrow); tasks in plain Python need processes.
    """

    are_apart = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        """Tasks that no thread has begun, each with the future that gets its result."""
        self._threads: list[threading.Thread] = []
        """Threads of this call of `map` and of earlier ones whose tasks are not done."""

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`."""
        futures: list[Future[_Result]] = [Future() for _ in tasks]
        self._waiting.extend(zip(futures, (partial(function, task) for task in tasks), strict=True))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        with held_signals():  # so that signals reach the thread that waits for results
            for _ in range(min(self.workers, len(tasks))):
                # A daemon thread, because a task that does not end in time must not keep the process alive.
                thread = threading.Thread(target=self._work, daemon=True)
                self._threads.append(thread)
                thread.start()
        return results_in_order(futures)

    def end(self) -> None:
        """Starts no more tasks, and waits up to `_END_SECONDS` for those that are running."""
        self._waiting.clear()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        """Runs tasks until none are left; the body of each thread."""
        while True:
            try:
                future, task = self._waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(task())
            except BaseException as error:  # any error is raised again by who waits for the result
                future.set_exception(error)


@contextmanager
def _open_threads(workers: int) -> Iterator[ThreadEngine]:
    """Gives an engine of threads, and ends it afterwards."""
    engine = ThreadEngine(workers)
    try:
        yield engine
    finally:
        engine.end()


class ProcessEngine:
    """Runs tasks in local processes. `open_engine` makes one and ends its processes."""

    are_apart = False

    def __init__(self, executor: ProcessPoolExecutor, workers: int) -> None:
        self._executor = executor
        self.workers = workers

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`.

        Raises:
            ChildProcessError: a process died, for example because memory ran out.
        """
        # Processes start here, with Ctrl-C held back: only this process gets it, and ends the others. One that dies at
        # once may already break the pool while later tasks are submitted.
        with _naming_deaths(), held_signals([signal.SIGINT]):
            return self._results([self._executor.submit(function, task) for task in tasks])

    def _results(self, futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
        """Yields results in order; raises a ChildProcessError if a process died."""
        with _naming_deaths():
            yield from results_in_order(futures)


@contextmanager
def _naming_deaths() -> Iterator[None]:
    """Turns the error of a broken pool of processes into a ChildProcessError with advice."""
    try:
        yield
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process died before its task was done (out of memory, perhaps); try fewer workers, or one"
        ) from None


@contextmanager
def _open_processes(workers: int) -> Iterator[ProcessEngine]:
    """Gives an engine of local processes; kills them after an exception, and lets them end otherwise."""
    executor = ProcessPoolExecutor(workers, mp_context=_WorkerContext(), initializer=_end_with_parent)
    try:
        yield ProcessEngine(executor, workers)
    except BaseException:
        # A task may take minutes, and nobody needs its result any more. The executor has no public way to kill.
        for process in list((executor._processes or {}).values()):
            process.kill()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


class _Worker(SpawnProcess):
    """A spawned process that, unlike others, does not import the program's script again.

    Tasks are functions of modules that can be imported, so nothing in the script is needed, and the script's imports
    may take longer than the work.
    """

    def start(self) -> None:
        """Starts the process while an empty module is in the place of the script."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(SpawnContext):
    """Spawns `_Worker`s. Processes are not forked: a fork while Arrow's or Numba's threads hold locks can hang."""

    Process = _Worker


def _end_with_parent() -> None:
    """Ends this worker when the process that started it ends, however it ends."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def open_engine(workers: int, kind: AnyEngineKind = "processes", *, ray_address: str | None = None) -> Iterator[Engine]:
    """Gives an engine of one kind, and ends its threads or processes afterwards.

    Example:
        >>> with open_engine(workers=1) as engine:
        ...     list(engine.map(abs, [-3, 2]))
        [3, 2]

    Args:
        workers: number of threads or local processes, at least 1; 1 means the calling thread.
        kind: kind of the engine. "ray" takes its number of workers from the cluster.
        ray_address: address of the cluster, as `ray.init` takes it, see `Execution.ray_address`.

    Raises:
        ChildProcessError: in the block, processes died or machines were lost.
        ConnectionError: no Ray cluster is at that address.
        ImportError: Ray is not installed.
    """
    try:
        with _opened(workers, kind, ray_address) as engine:
            yield engine
    except ChildProcessError as error:
        raise ChildProcessError(
            message_of(error) + ". Work that takes " + parameter("resume", True) + " keeps its finished tasks"
        ) from None


def _opened(workers: int, kind: AnyEngineKind, ray_address: str | None) -> AbstractContextManager[Engine]:
    """Returns the context manager that gives the engine and ends it; see `open_engine`."""
    if kind == "ray":
        return open_ray(ray_address)
    if workers == 1:
        return nullcontext(InlineEngine())
    return _open_threads(workers) if kind == "threads" else _open_processes(workers)
