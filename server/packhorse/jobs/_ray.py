"""Tasks on a Ray cluster, whose machines share the file system of inputs and output.

Owns joining a cluster and what becomes of its failures. Leaves what a task is to the jobs: every task can be done
again, so those of a machine that is lost are done by another.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from packhorse.jobs.engines import ENDING_SIGNALS, results_in_order

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_RETRIES = 16
"""How often a task is done again because its process or machine was lost."""


class RayEngine:
    """Runs tasks on a cluster; made by `open_ray`."""

    are_apart = True

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """See `Engine`.

        Raises:
            ChildProcessError: processes or machines were lost again and again.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(function)
        return self._results([remote.remote(task).future() for task in tasks])

    def _results(self, futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
        try:
            yield from results_in_order(futures)  # not `ray.get`, which swallows what a signal raises
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise ChildProcessError(
                f"the Ray cluster lost a task {_RETRIES} times ({type(error).__name__}): its machines may be "
                "out of memory, or lack packhorse"
            ) from None


@contextmanager
def open_ray(address: str | None) -> Iterator[RayEngine]:
    """Joins a cluster and leaves it afterwards; one that this process has joined already is stayed in.

    Args:
        address: of the cluster, as `ray.init` takes it; None for what the environment variable RAY_ADDRESS says, or
            else a cluster of this machine alone, for as long as the work takes.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster is at that address.
    """
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
    """Puts this program's signal handlers back, which Ray replaces by its own."""
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
