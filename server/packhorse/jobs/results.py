"""Results of tasks that run elsewhere, in their order, with waits that end soon after a signal."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

_Result = TypeVar("_Result")

_SIGNALS_SECONDS = 0.2
"""The longest uninterrupted wait for a task. A signal that another thread received would not end a longer one."""


def results_in_order(futures: Sequence[Future[_Result]]) -> Iterator[_Result]:
    """Yields the results of futures in their order; unlike `Future.result`, the wait ends soon after a signal.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as threads:
        ...     list(results_in_order([threads.submit(abs, -1), threads.submit(abs, 2)]))
        [1, 2]
    """
    for future in futures:
        is_done = False
        while not is_done:
            is_done = bool(wait((future,), timeout=_SIGNALS_SECONDS).done)
        yield future.result()
