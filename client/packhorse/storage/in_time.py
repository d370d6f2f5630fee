"""Questions to a file system that are answered in time, or fail: a file system may hang for ever.

Leaves opening and reading files to `plain_files`.
"""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_Answer = TypeVar("_Answer")

ANSWER_SECONDS = 10.0
"""How long a file system may take to answer: to look at some files, or to read one of a few megabytes."""

_unanswered: "dict[str, Future[object]]" = {}
"""Key of a question → its answer, for questions that had no answer in time and still have a thread that waits."""

os.register_at_fork(after_in_child=_unanswered.clear)  # a child has none of these threads

_never_waits = False
"""Whether `look_at` gives up in time; see `never_wait_for_files`."""


def never_wait_for_files() -> None:
    """Makes every `look_at` in this process give up in time. Servers call it, because clients wait for them.

    Without it, in a command or a training process, `look_at` is a plain call: nobody else waits, and a thread for each
    look would take longer than opening a dataset.
    """
    global _never_waits
    _never_waits = True


def look_at(key: str, ask: Callable[[], _Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Calls `ask` and returns its result; in a process that called `never_wait_for_files`, through `within`.

    Arguments and errors are those of `within`.

    Example:
        >>> look_at(".", lambda: os.path.isdir("."))
        True
    """
    return within(key, ask, seconds) if _never_waits else ask()


def within(key: str, ask: Callable[[], _Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Calls `ask` in a new thread, and returns what it returns or raises what it raises, within some seconds.

    A thread that waits for a hanging file system cannot be ended, so it is left behind. Until it ends, every later call
    with the same key fails at once, so that a path does not cost a thread each time that somebody asks.

    Example:
        >>> within(".", lambda: os.path.isdir("."))
        True

    Args:
        key: what is asked about, such as a path.
        ask: reads or looks at files, and changes nothing.
        seconds: how long that may take.

    Raises:
        TimeoutError: there was no answer in time, or the thread of an earlier such call with the same key still waits.
    """
    earlier = _unanswered.get(key)
    if earlier is not None and not earlier.done():
        raise _no_answer(key)
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=f"asks {key}", daemon=True).start()
    wait([answer], seconds)
    if not answer.done():
        _unanswered[key] = answer  # type: ignore[assignment]  # of any type
        answer.add_done_callback(lambda _: _unanswered.pop(key, None))
        raise _no_answer(key)
    return answer.result()


def _no_answer(key: str) -> TimeoutError:
    """Returns the error of a file system that does not answer."""
    return TimeoutError(errno.ETIMEDOUT, "its file system does not answer", key)
