"""How long and how often the client tries again.

Owns the delays; leaves what is tried to its callers.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from packhorse.client.errors import TransientError

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, up to a deadline.

    Raises:
        ValueError: a number is out of range.
    """

    deadline_seconds: float = 120.0
    """How long to go on after a first failure without any progress; 0 gives up at the first failure."""
    first_delay_seconds: float = 0.05
    """Upper end of the first delay; each further one doubles."""
    most_delay_seconds: float = 5.0
    """Upper end of every delay."""

    def __post_init__(self) -> None:
        """Checks every number."""
        if self.deadline_seconds < 0 or not 0 < self.first_delay_seconds <= self.most_delay_seconds:
            raise ValueError(f"retry delays must be above 0 and the deadline at least 0, got {self}")


class Attempts:
    """One series of attempts under a policy."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """Progress was made: the deadline and the delays begin anew."""
        self._failures = 0
        self._failing_since = None

    def wait_after(self, error: TransientError) -> bool:
        """Sleeps before the next attempt; returns False, at once, when the deadline would pass."""
        if self._failing_since is None:  # the time that a consumer took over what came before does not count
            self._failing_since = time.monotonic()
        longest = min(self._policy.most_delay_seconds, self._policy.first_delay_seconds * 2 ** min(self._failures, 60))
        delay = max(random.uniform(0, longest), error.retry_after_seconds or 0.0)
        self._failures += 1
        if time.monotonic() + delay - self._failing_since > self._policy.deadline_seconds:
            return False
        _LOG.warning("%s; trying again in %.1f s", error, delay)
        time.sleep(delay)
        return True


def with_retries(policy: RetryPolicy, attempt: Callable[[], _Result]) -> _Result:
    """Returns what `attempt` returns; a TransientError is raised once the deadline has passed."""
    attempts = Attempts(policy)
    while True:
        try:
            return attempt()
        except TransientError as error:
            if not attempts.wait_after(error):
                raise
