"""Tries again until a deadline: the attempts of one call or stream, and their log lines.

Owns the decision whether to try once more, and which policy `connect` takes from its arguments. Every request may be
sent again, so every TransientError is. Leaves delays and deadlines to `packhorse.formats.retry_policy`, which failures
are transient to `grpc_errors`, and trying several replicas within an attempt to `transport.grpc_channels`.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from packhorse.client.errors import DamagedAnswerError, ServerUnavailableError, TransientError
from packhorse.formats.retry_policy import RetryPolicy, checked_seconds
from packhorse.topology.checks import quoted

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

SHORTEST_ATTEMPT_SECONDS = 0.5
"""The least time of an attempt, however close the deadline."""
LOG_EVERY_SECONDS = 10.0
"""The least time between two lines in the log about the same wait."""
MOST_DAMAGED = 20
"""How often a stream may continue after damaged answers; the count begins again after SOUND_ANSWERS sound answers."""
SOUND_ANSWERS = 100
"""Undamaged answers in a row after which earlier damage is forgotten."""


def policy_of(timeout_seconds: float | None, retry: RetryPolicy | None) -> RetryPolicy:
    """Returns the policy of `connect`'s arguments; a ValueError if both are given, or one is out of range."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ValueError(f"retry must be a RetryPolicy, e.g. RetryPolicy(deadline_seconds=60), got {quoted(retry)}")
    if timeout_seconds is None:
        return retry or RetryPolicy()
    if retry is not None:
        raise ValueError("timeout_seconds and retry are both given; give only RetryPolicy(deadline_seconds=…)")
    if not checked_seconds("timeout_seconds", timeout_seconds):
        raise ValueError("timeout_seconds must be above 0; RetryPolicy(deadline_seconds=0) is for a single try")
    return RetryPolicy(deadline_seconds=timeout_seconds, connect_seconds=timeout_seconds)


class Attempts:
    """The attempts of one call, or of one stream over all its messages.

    Args:
        policy: the delays and deadlines.
        has_answered: whether the service has ever answered.
    """

    def __init__(self, policy: RetryPolicy, *, has_answered: Callable[[], bool]) -> None:
        self._policy = policy
        self._has_answered = has_answered
        self._logged_at = -math.inf  # when the log was last written
        self._num_damaged = 0  # waits in which a damaged answer came
        self._num_sound = 0  # answers without damage since the last of them
        self._is_damaged = False  # whether a damaged answer came in this wait
        self.begin()

    def begin(self) -> None:
        """Begins a wait for an answer: the deadline counts from now, and delays are short again."""
        self._began_at = time.monotonic()
        self._failures = 0

    def succeeded(self) -> None:
        """Records an answer that brought something new, and begins the wait for the next one."""
        if self._failures:
            _LOG.warning("answered again after %.1f s", self._elapsed_seconds())
        if self._is_damaged:
            self._num_damaged, self._num_sound = self._num_damaged + 1, 0
        else:
            self._num_sound += 1
            if self._num_sound >= SOUND_ANSWERS:
                self._num_damaged = 0
        self._is_damaged = False
        self.begin()

    def timeout_seconds(self) -> float:
        """Returns how long this attempt may take: until the deadline, but not less than SHORTEST_ATTEMPT_SECONDS."""
        if self._policy.deadline_seconds == 0:  # there is only one attempt
            return math.inf
        return max(SHORTEST_ATTEMPT_SECONDS, self._policy.deadline_seconds - self._elapsed_seconds())

    def wait_after(self, error: TransientError) -> bool:
        """Sleeps before the next attempt; returns False at once if the deadline would pass.

        The error's text then says how long the client tried, or that too many answers were damaged.
        """
        self._is_damaged = self._is_damaged or isinstance(error, DamagedAnswerError)
        if self._is_damaged and self._num_damaged >= MOST_DAMAGED:
            error.args = (f"{error} (more than {MOST_DAMAGED} answers were damaged, with few sound ones between)",)
            return False
        is_known = self._has_answered() or not isinstance(error, ServerUnavailableError)  # other errors are answers
        limit = self._policy.limit_seconds(is_known=is_known)
        self._failures += 1
        delay = max(self._policy.delay_seconds(self._failures), error.retry_after_seconds or 0.0)
        elapsed = self._elapsed_seconds()
        if elapsed + delay > limit or limit == 0:  # a limit of 0 allows one attempt, even if no time has passed
            if not is_known:
                tried = f"tried for {elapsed:.0f} s; " if self._failures > 1 or elapsed >= 1 else ""
                error.args = (f"{error} ({tried}is a server listening there?)",)
            return False
        self._log(error, elapsed, limit)
        time.sleep(delay)
        return True

    def run(self, attempt: Callable[[], _Result], *, on_failure: Callable[[], None] = lambda: None) -> _Result:
        """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

        `on_failure` is called after every TransientError.
        """
        while True:
            try:
                return attempt()
            except TransientError as error:
                on_failure()
                if not self.wait_after(error):
                    raise

    def _log(self, error: TransientError, elapsed: float, limit: float) -> None:
        """Logs the first failure of a wait, then at most one line in LOG_EVERY_SECONDS."""
        if self._failures == 1:
            _LOG.warning("%s; trying again for up to %g s", error, limit)
        elif time.monotonic() - self._logged_at >= LOG_EVERY_SECONDS:
            _LOG.warning("still no answer after %.0f s of %g s: %s", elapsed, limit, error)
        else:
            return
        self._logged_at = time.monotonic()

    def _elapsed_seconds(self) -> float:
        """Returns the seconds since this wait began."""
        return time.monotonic() - self._began_at


def with_retries(
    policy: RetryPolicy, attempt: Callable[[float], _Result], *, has_answered: Callable[[], bool]
) -> _Result:
    """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

    Args:
        policy: the delays and deadlines.
        attempt: makes one attempt; its argument is the most seconds that it may take.
        has_answered: whether the service has ever answered.
    """
    attempts = Attempts(policy, has_answered=has_answered)
    result = attempts.run(lambda: attempt(attempts.timeout_seconds()))
    attempts.succeeded()
    return result
