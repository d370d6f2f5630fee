"""`StoreAttempts`: repeated attempts to read from a store, each with a time limit, and their lines in the log.

Leaves deadline and delays to `formats.retry_policy`, and deciding which failures are final to `store`.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from packhorse.formats.retry_policy import RetryPolicy

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_QUIET_SECONDS = 5.0
"""Least time between two lines of the log about failures; also how long an answer may be late without a line."""

_SHORTEST_ATTEMPT_SECONDS = 1.0
"""Time that an attempt gets even if the deadline is nearer."""


@dataclass(slots=True)
class StoreAttempts:
    """One series of attempts to get one answer from a store: counts failures, watches the time, and writes the log."""

    policy: RetryPolicy
    shown: str
    """The URL that is asked, without its secrets, for messages."""
    failures: int = 0
    """Attempts that failed so far."""
    _began: float = field(default_factory=time.monotonic)
    _logged_at: float | None = None
    """Time of the last line in the log; None before the first."""

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the first attempt began."""
        return time.monotonic() - self._began

    def attempt_seconds(self, most_seconds: float) -> float:
        """Returns how long the next attempt may take: `most_seconds`, or less if the deadline is nearer.

        A deadline of 0 means one attempt only, which may take `most_seconds`.
        """
        if not self.policy.deadline_seconds:
            return most_seconds
        left_seconds = self.policy.deadline_seconds - self.elapsed_seconds
        return min(most_seconds, max(left_seconds, _SHORTEST_ATTEMPT_SECONDS))

    def wait_for_next(self, what: str, why: str, *, is_known: bool) -> bool:
        """Waits for the next attempt; returns False if no time is left for one.

        `is_known` is False if the address has never answered, and this failure suggests that nothing is there: then
        there is less time. The log names what was asked for (`what`), and why there is no answer (`why`).
        """
        self.failures += 1
        limit_seconds = self.policy.limit_seconds(is_known=is_known)
        delay_seconds = self.policy.delay_seconds(self.failures)
        if self.elapsed_seconds + delay_seconds >= limit_seconds:
            return False
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= _QUIET_SECONDS:
            self._logged_at = now
            _LOG.warning("%s: %s failed (%s); trying again for up to %.0f s", self.shown, what, why, limit_seconds)
        time.sleep(delay_seconds)
        return True

    def within(self, most_seconds: float, work: Callable[[], _Result]) -> _Result:
        """Runs one attempt in a new thread; if it takes too long, leaves the thread behind and raises TimeoutError."""
        answer: Future[_Result] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # raised again by the thread that waits
                answer.set_exception(error)

        threading.Thread(target=run, name="packhorse-store", daemon=True).start()
        seconds = self.attempt_seconds(most_seconds)
        wait([answer], min(seconds, _QUIET_SECONDS))
        if seconds > _QUIET_SECONDS and not answer.done():
            if self._logged_at is None:
                self._logged_at = time.monotonic()
                _LOG.warning("%s: no answer for %g s; waiting for up to %.3g s", self.shown, _QUIET_SECONDS, seconds)
            wait([answer], seconds - _QUIET_SECONDS)
        if answer.done():
            return answer.result()
        raise TimeoutError(f"no answer within {seconds:g} s")
