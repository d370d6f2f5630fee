"""How long and how often the client tries: attempts until a deadline, and the wait for a stream's next message.

Owns the attempts of a series with their log lines, and the one thread of this process that cancels overdue calls.
Leaves the numbers to `RetryPolicy`, and the limits of gRPC's calls to `transport.grpc_channels`.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from packhorse.client.errors import ServerUnavailableError, TransientError
from packhorse.client.transport.requests import shortened
from packhorse.formats.retry_policy import RetryPolicy, checked_seconds

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

SHORTEST_ATTEMPT_SECONDS = 0.5
"""The least time of an attempt, however close the deadline."""
TOLD_EVERY_SECONDS = 10.0


def policy_of(timeout_seconds: float | None, retry: RetryPolicy | None) -> RetryPolicy:
    """Returns the policy of two arguments of `connect`; a ValueError where both are given, or one is out of range."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ValueError(f"retry must be a RetryPolicy, e.g. RetryPolicy(deadline_seconds=60), got {shortened(retry)}")
    if timeout_seconds is None:
        return retry or RetryPolicy()
    if retry is not None:
        raise ValueError("timeout_seconds and retry are both given; give RetryPolicy(deadline_seconds=…) alone")
    if not checked_seconds("timeout_seconds", timeout_seconds):
        raise ValueError("timeout_seconds must be above 0; RetryPolicy(deadline_seconds=0) is for a single try")
    return RetryPolicy(deadline_seconds=timeout_seconds, connect_seconds=timeout_seconds)


class Attempts:
    """One series of attempts under a policy.

    Args:
        policy: how long and how often.
        has_answered: whether the service has ever answered.
    """

    def __init__(self, policy: RetryPolicy, *, has_answered: Callable[[], bool]) -> None:
        self._policy = policy
        self._has_answered = has_answered
        self._counts_from: float | None = None
        self._failures = 0
        self._told_at = -math.inf

    def begin(self) -> None:
        """Begins to count the deadline, unless an attempt has begun it."""
        if self._counts_from is None:
            self._counts_from = time.monotonic()

    def succeeded(self) -> None:
        """Resets the deadline and the delays after an answer."""
        if self._failures:
            _LOG.warning("answered again after %.1f s", self._elapsed_seconds())
        self._reset()

    def timeout_seconds(self) -> float:
        """The most that the next attempt may take."""
        if self._policy.deadline_seconds == 0:  # there is only this one
            return math.inf
        return max(SHORTEST_ATTEMPT_SECONDS, self._policy.deadline_seconds - self._elapsed_seconds())

    def wait_after(self, error: TransientError) -> bool:
        """Sleeps before the next attempt; returns False at once where the deadline would pass.

        The error's text then says how long the client tried, and the next failure begins another series.
        """
        self.begin()
        is_known = self._has_answered() or not isinstance(error, ServerUnavailableError)
        limit = self._policy.limit_seconds(is_known=is_known)
        self._failures += 1
        delay = max(self._policy.delay_seconds(self._failures), error.retry_after_seconds or 0.0)
        elapsed = self._elapsed_seconds()
        if elapsed + delay > limit or limit == 0:
            if not is_known:
                tried = f"tried for {elapsed:.0f} s; " if self._failures > 1 or elapsed >= 1 else ""
                error.args = (f"{error} ({tried}is a server listening there?)",)
            self._reset()
            return False
        self._tell(error, elapsed, limit)
        time.sleep(delay)
        return True

    def run(self, attempt: Callable[[], _Result], *, let_go: Callable[[], None] = lambda: None) -> _Result:
        """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

        `let_go` is called after every TransientError.
        """
        while True:
            try:
                return attempt()
            except TransientError as error:
                let_go()
                if not self.wait_after(error):
                    raise

    def _tell(self, error: TransientError, elapsed: float, limit: float) -> None:
        """Logs the first failure, then at most a line in ten seconds."""
        if self._failures == 1:
            _LOG.warning("%s; trying again for up to %g s", error, limit)
        elif time.monotonic() - self._told_at >= TOLD_EVERY_SECONDS:
            _LOG.warning("still no answer after %.0f s of %g s: %s", elapsed, limit, error)
        else:
            return
        self._told_at = time.monotonic()

    def _elapsed_seconds(self) -> float:
        return 0.0 if self._counts_from is None else time.monotonic() - self._counts_from

    def _reset(self) -> None:
        self._failures = 0
        self._counts_from = None


def with_retries(
    policy: RetryPolicy, attempt: Callable[[float], _Result], *, has_answered: Callable[[], bool]
) -> _Result:
    """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

    An attempt takes the seconds that it may last; `has_answered` says whether the service has ever answered.
    """
    attempts = Attempts(policy, has_answered=has_answered)
    attempts.begin()
    result = attempts.run(lambda: attempt(attempts.timeout_seconds()))
    attempts.succeeded()
    return result


_Message = TypeVar("_Message", covariant=True)


class Call(Protocol[_Message]):
    """A gRPC call that yields messages."""

    def __next__(self) -> _Message: ...
    def __iter__(self) -> Iterator[_Message]: ...
    def cancel(self) -> Any:
        """Ends the call; waiting for its next message raises an error."""


class NoMessageError(Exception):
    """A call brought no message in time, and was cancelled."""


class Watchdog:
    """Cancels calls whose next message is overdue: gRPC limits whole calls, and a stream may take hours.

    One thread serves all connections of a process, so a message costs two dictionary entries. It ends when the last
    message that it waited for would have been overdue.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[int, tuple[float, Call[Any]]] = {}  # id of a call -> when its message is due
        self._overdue: set[int] = set()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def next_message(self, call: Call[_Message], seconds: float) -> _Message | None:
        """Returns a call's next message, or None at its end; a NoMessageError where it does not come in time."""
        due = time.monotonic() + seconds
        with self._changed:
            self._due[id(call)] = (due, call)
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
                del self._due[id(call)]
                self._overdue.discard(id(call))

    def _wake_at(self, due: float) -> None:
        self._wakes_at = due
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="packhorse-watchdog", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while waiting := {key: due for key, (due, _) in self._due.items() if key not in self._overdue}:
                self._wakes_at = min(waiting.values())
                self._changed.wait(self._wakes_at - time.monotonic())
                for key, (due, call) in self._due.items():
                    if due <= time.monotonic() and key not in self._overdue:
                        self._overdue.add(key)
                        call.cancel()
            self._wakes_at = math.inf
            self._thread = None


_WATCHDOG = Watchdog()


def _begin_again() -> None:
    # A fork has neither its parent's threads nor its calls.
    global _WATCHDOG
    _WATCHDOG = Watchdog()


os.register_at_fork(after_in_child=_begin_again)


def next_message(call: Call[_Message], seconds: float) -> _Message | None:
    """See `Watchdog.next_message`."""
    return _WATCHDOG.next_message(call, seconds)
