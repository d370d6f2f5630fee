"""A time limit for each message of a stream: gRPC limits only whole calls, and a stream may take hours.

Owns this process's one thread that cancels overdue calls. Leaves how long a message may take to `grpc_channels`.
"""

import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

_Message = TypeVar("_Message", covariant=True)


class Call(Protocol[_Message]):
    """A gRPC call that yields messages."""

    def __next__(self) -> _Message: ...
    def __iter__(self) -> Iterator[_Message]: ...
    def cancel(self) -> Any:
        """Ends the call; waiting for its next message raises an error."""


class NoMessageError(Exception):
    """A call brought no message in time and was cancelled, or it ended without one."""


class _Wait(NamedTuple):
    due: float
    """When the call's next message is due, by the monotonic clock."""
    call: Call[Any]


class Watchdog:
    """Cancels calls whose next message is overdue.

    One thread serves all connections of a process, so waiting for a message costs only two changes of a dictionary. The
    thread sleeps until the next message is due, and ends when it wakes up and no call waits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: dict[int, _Wait] = {}  # by the id of their calls
        self._overdue: set[int] = set()  # ids of the calls that were cancelled
        self._wakes_at = math.inf  # by the monotonic clock; infinity without a thread
        self._thread: threading.Thread | None = None

    def next_message(self, call: Call[_Message], seconds: float) -> _Message | None:
        """Returns a call's next message, or None at its end; a NoMessageError if it takes longer than `seconds`."""
        due = time.monotonic() + seconds
        with self._changed:
            self._waits[id(call)] = _Wait(due, call)
            if due < self._wakes_at:
                self._wake_at(due)
        try:
            return next(call, None)
        except Exception:
            if id(call) in self._overdue:
                raise NoMessageError(f"no message within {seconds:.1f} s") from None
            raise
        finally:
            with self._changed:
                del self._waits[id(call)]
                self._overdue.discard(id(call))

    def _wake_at(self, due: float) -> None:
        """Starts the thread if need be, or wakes it, so that it next sleeps only until `due`. Needs the lock."""
        self._wakes_at = due
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="packhorse-watchdog", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _watch(self) -> None:
        """Runs in the thread: cancels each call at its due time, and returns once no call waits."""
        with self._changed:
            while dues := [wait.due for call_id, wait in self._waits.items() if call_id not in self._overdue]:
                self._wakes_at = min(dues)
                self._changed.wait(self._wakes_at - time.monotonic())
                for call_id, wait in self._waits.items():
                    if wait.due <= time.monotonic() and call_id not in self._overdue:
                        self._overdue.add(call_id)
                        wait.call.cancel()
            self._wakes_at = math.inf
            self._thread = None


_WATCHDOG = Watchdog()


def _begin_again() -> None:
    """Replaces the watchdog in a forked child, which has neither its parent's threads nor its calls."""
    global _WATCHDOG
    _WATCHDOG = Watchdog()


os.register_at_fork(after_in_child=_begin_again)


def next_message(call: Call[_Message], seconds: float) -> _Message | None:
    """Returns a call's next message by this process's one watchdog; see `Watchdog.next_message`."""
    return _WATCHDOG.next_message(call, seconds)
