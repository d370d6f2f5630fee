"""Where the tasks of a long job run: in threads, in local processes, or on a Ray cluster.

Owns the engines, the choice between them, how they end, and holding signals back. Leaves tasks to the job that has
them. For any engine to run a task, its function must be at the top level of a module that can be imported, and the task
must be a description that can be pickled. Recording finished tasks is in `packhorse.storage`.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from numbers import Integral
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar, get_args

from packhorse.parameters import message_of, parameter

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

EngineKind = Literal["processes", "ray"]
"""Kind of engine for a job whose tasks are plain Python: local processes, or a Ray cluster."""

AnyEngineKind = Literal["threads", "processes", "ray"]
"""Kind of engine for a job whose tasks release the interpreter lock, so that threads help too."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program: of Ctrl-C, of a scheduler, and of a closed terminal."""

_SIGNALS_SECONDS = 0.2
"""The longest uninterrupted wait for a task. A signal that another thread received would not end a longer one."""
_END_SECONDS = 2.0
"""The time that threads have to finish their tasks when the job is given up; an object store may stall for longer."""
_RETRIES = 16
"""Number of times that Ray runs a task again because its process or machine was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a long job runs: on which engine, with how many workers, and whether it resumes interrupted work.

    Example:
        >>> Execution(engine="ray", workers=2)
        Traceback (most recent call last):
        ValueError: workers are of this machine, and a Ray cluster has its own: leave workers out

    Raises:
        ValueError: a field is out of range, or does not fit the engine; the message names it.
    """

    engine: AnyEngineKind | None = None
    """What does the work: "threads" of this process (the default of `prepare`, and only there), "processes" on this
    machine (the default elsewhere), or "ray", a cluster whose machines share the files.
    """
    workers: int | None = None
    """Number of threads or processes. By default it depends on the amount of work; a cluster has its own number."""
    ray_address: str | None = None
    """Address of the cluster. By default the environment variable RAY_ADDRESS, or a temporary cluster on this machine.
    """
    time_limit_seconds: float | None = None
    """Time limit for planning, 60 s by default. A packer that improves its plan step by step normally ends earlier,
    after a fixed amount of work. If the limit ends it, the manifest says so, and the same call may give another plan.
    """
    resume: bool = False
    """Resume an interrupted call, if its input and options are the same. Without this, the work starts over."""
    progress: bool = True
    """Whether stderr shows progress: bars on a terminal, otherwise a line every few seconds."""

    def __post_init__(self) -> None:
        """Checks every field."""
        kinds = get_args(AnyEngineKind)
        if self.engine not in (None, *kinds):
            raise ValueError(parameter("engine") + f" must be one of {', '.join(kinds)}, got {self.engine!r}")
        if self.workers is not None and (
            isinstance(self.workers, bool) or not isinstance(self.workers, Integral) or self.workers < 1
        ):
            raise ValueError(parameter("workers") + f" must be an integer of at least 1, got {self.workers!r:.60}")
        if self.engine == "ray" and self.workers is not None:
            raise ValueError("workers are of this machine, and a Ray cluster has its own: leave workers out")
        if self.engine != "ray" and self.ray_address is not None:
            raise ValueError(
                parameter("ray_address")
                + f" {self.ray_address!r} is a Ray cluster's: choose "
                + parameter("engine", "ray")
            )

    def refuse(self, work: str, **fields: object) -> None:
        """Raises a ValueError for a field that has no effect on some work, but is set to another value.

        Args:
            work: the work in words, for the message.
            fields: the values that such fields may have, in addition to None.
        """
        for name, plain in fields.items():
            if getattr(self, name) not in (None, plain):
                raise ValueError(f"{name} {getattr(self, name)!r} has no effect on {work}: leave it out")


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


def results_in_order(futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
    """Yields the results of futures in their order; unlike `Future.result`, the wait ends soon after a signal.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as threads:
        ...     list(results_in_order([threads.submit(abs, -1), threads.submit(abs, 2)]))
        [1, 2]
    """
    for future in futures:
        while not wait((future,), timeout=_SIGNALS_SECONDS).done:
            pass
        yield future.result()


@contextmanager
def held_signals(numbers: Collection[signal.Signals] = ENDING_SIGNALS) -> Iterator[None]:
    """Holds signals back from this thread until the block ends; threads and processes started inside never get them.

    Example:
        >>> with held_signals():
        ...     signal.raise_signal(signal.SIGTERM)  # comes when the block ends
        ...     signal.sigtimedwait({signal.SIGTERM}, 1).si_signo == signal.SIGTERM  # taken here instead
        True

    Args:
        numbers: the signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ThreadEngine:
    """Runs tasks in threads of this process. No process is started and nothing is pickled, so even small jobs gain.

    For tasks that release the interpreter lock (compiled loops, NumPy, pyarrow); tasks in plain Python need processes.
    """

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
        with held_signals():  # so that signals reach the thread that waits for results
            for _ in range(min(self.workers, len(tasks))):
                # Daemon threads: a task that does not end in time must not keep the process alive.
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        return results_in_order(futures)

    def end(self) -> None:
        """Starts no more tasks, and waits up to `_END_SECONDS` for those that are running."""
        self._left.clear()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        """Runs tasks until none are left; the body of each thread."""
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
def _open_threads(workers: int) -> Iterator[ThreadEngine]:
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
        # Processes start here, with Ctrl-C held back: only this process gets it, and ends the others.
        with _deaths_said(), held_signals([signal.SIGINT]):
            return self._results([self._executor.submit(function, task) for task in tasks])

    def _results(self, futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
        with _deaths_said():
            yield from results_in_order(futures)


@contextmanager
def _deaths_said() -> Iterator[None]:
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
        for process in list((executor._processes or {}).values()):
            process.kill()  # a task may take minutes, and nobody needs its result any more
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


class RayEngine:
    """Runs tasks on a Ray cluster, whose machines share the file system of inputs and output.

    Tasks can be repeated, so if a machine is lost, another machine runs its tasks again.
    """

    are_apart = True

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`.

        Raises:
            ChildProcessError: the processes or machines of a task were lost `_RETRIES` times.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(function)
        return self._results([remote.remote(task).future() for task in tasks])

    def _results(self, futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
        """Yields results in order; turns Ray's errors into the task's own, or a ChildProcessError."""
        try:
            yield from results_in_order(futures)  # not by `ray.get`, which swallows an exception of a signal handler
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise ChildProcessError(
                f"the Ray cluster lost a task {_RETRIES} times ({type(error).__name__}): its machines may be "
                "out of memory, or lack packhorse"
            ) from None


@contextmanager
def _open_ray(address: str | None) -> Iterator[RayEngine]:
    """Gives an engine on a cluster; joins the cluster and leaves it afterwards, unless the process had joined one."""
    try:
        import ray
    except ModuleNotFoundError:
        raise ImportError(
            "ray is needed here and not installed; install it with: pip install 'packhorse[ray]'", name="ray"
        ) from None
    if ray.is_initialized():
        yield RayEngine(ray)
        return
    with _own_signal_handlers():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        yield RayEngine(ray)
    finally:
        ray.shutdown()


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restores this program's signal handlers after the block, in which Ray replaces them by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def open_engine(workers: int, kind: AnyEngineKind = "processes", *, ray_address: str | None = None) -> Iterator[Engine]:
    """Gives an engine of one kind, and ends its threads or processes afterwards.

    Example:
        >>> with open_engine(workers=1) as engine:
        ...     list(engine.map(abs, [-3, 2]))
        [3, 2]

    Args:
        workers: number of threads or local processes, at least 1; 1 means the calling thread.
        kind: kind of the engine.
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
    """Returns the context manager of an engine of a kind."""
    if kind == "ray":
        return _open_ray(ray_address)
    if workers == 1:
        return nullcontext(InlineEngine())
    return _open_threads(workers) if kind == "threads" else _open_processes(workers)
