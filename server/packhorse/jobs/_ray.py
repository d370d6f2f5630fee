"""The engine that runs tasks on a Ray cluster, and how a process joins the cluster and leaves it.

Owns Ray's errors and its signal handlers. What an engine is, is in `engines`.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from packhorse.jobs.results import results_in_order
from packhorse.jobs.signals import ENDING_SIGNALS

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_RETRIES = 16
"""Number of times that Ray runs a task again because its process or machine was lost."""


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
def open_ray(address: str | None) -> Iterator[RayEngine]:
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
