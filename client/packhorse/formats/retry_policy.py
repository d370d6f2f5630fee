"""Retries: how long one attempt and all of them together may take, how long to wait between, and what the log says.

Owns when to give up. Leaves the requests, and which failures are final, to `formats.object_store`.
"""

import logging
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, up to a deadline.

    The deadline is kept within a second. It counts from the moment at which a call, or the wait for a stream's next
    message, begins. A stream that brings nothing for half of it is opened again, at another replica if there is one.

    Example:
        >>> from packhorse.client import connect
        >>> policy = RetryPolicy(deadline_seconds=600)  # a server may be away for ten minutes
        >>> with connect("embedded:datasets", retry=policy) as client:
        ...     client.get_dataset("corpus").num_bins
        2

    Raises:
        ValueError: a number is out of range.
    """

    deadline_seconds: float = 120.0
    """How long to try without an answer; 0 gives up at the first failure."""
    connect_seconds: float = 10.0
    """How long to try if the target has never answered: its address may be wrong."""
    first_delay_seconds: float = 0.05
    """Upper limit of the first delay; the limit doubles with each delay."""
    most_delay_seconds: float = 5.0
    """Upper limit of every delay."""

    def __post_init__(self) -> None:
        """Checks every number."""
        for each in fields(self):
            checked_seconds(each.name, getattr(self, each.name))
        delays = 0 < self.first_delay_seconds <= self.most_delay_seconds
        if not delays or not (self.deadline_seconds >= 0 and self.connect_seconds >= 0):
            raise ValueError(f"retry delays must be above 0, the deadline and connect_seconds at least 0, got {self}")

    def limit_seconds(self, *, is_known: bool) -> float:
        """How long to try in all, at a target that has answered before or at one that never has."""
        return self.deadline_seconds if is_known else min(self.deadline_seconds, self.connect_seconds)

    def delay_seconds(self, num_failures: int) -> float:
        """Draws the delay after this many failures in a row, at least 1."""
        longest = min(self.most_delay_seconds, self.first_delay_seconds * 2 ** min(num_failures - 1, 60))
        return _JITTER.uniform(0, longest)


def checked_seconds(name: str, value: object) -> float:
    """Returns a time in seconds; a ValueError with its name where it is not a number, or below 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name} must be a number of seconds, at least 0, got {value!r:.60}")
    return float(value)


_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_JITTER = random.SystemRandom()
"""Ranks that seed the global generator alike would all try again at the same moment."""

TIMEOUT_VARIABLE = "PACKHORSE_TIMEOUT_SECONDS"
"""Environment variable: how long to try without an answer, where no policy is given."""
_QUIET_SECONDS = 5.0
"""Least time between two lines of the log about a wait."""
_LEAST_SECONDS = 1.0
"""Least time of the last attempt."""
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
)
"""Names of stores' exceptions, or in their messages, for missing or wrong credentials."""
_UNREACHED = (
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "EndpointConnectionError",
    "NameResolutionError",
    "NewConnectionError",
)
"""Names of HTTP libraries' exceptions where nobody is at an address."""


def default_retry() -> RetryPolicy:
    """Returns the policy where none is given, with the environment's time; a ValueError if that is not above 0."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if not text:
        return RetryPolicy()
    try:
        seconds = checked_seconds(TIMEOUT_VARIABLE, float(text))
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got {text!r:.60}")
    return RetryPolicy(deadline_seconds=seconds, connect_seconds=seconds)


def is_of_credentials(error: BaseException) -> bool:
    """Whether a store's exception says that credentials are missing or wrong."""
    said = f"{type(error).__name__} {error}"
    return any(name in said for name in _NO_CREDENTIALS)


def is_unreached(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, says that nobody is at the address."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, socket.gaierror | ConnectionRefusedError) or type(error).__name__ in _UNREACHED:
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(slots=True)
class StoreAttempts:
    """One series of attempts to read from a store: its time, and its lines in the log."""

    policy: RetryPolicy
    shown: str
    """The URL that is asked, for messages."""
    failures: int = 0
    _began: float = field(default_factory=time.monotonic)
    _said: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Since the first attempt began."""
        return time.monotonic() - self._began

    def attempt_seconds(self, most: float) -> float:
        """Returns how long the next attempt may take."""
        if not self.policy.deadline_seconds:
            return most
        return min(most, max(self.policy.deadline_seconds - self.elapsed_seconds, _LEAST_SECONDS))

    def wait(self, what: str, why: str, *, is_known: bool) -> bool:
        """Waits for the next attempt; returns False where there is no time for one.

        `is_known`: the address has answered before, or may be right in spite of the failure.
        """
        self.failures += 1
        limit, delay = self.policy.limit_seconds(is_known=is_known), self.policy.delay_seconds(self.failures)
        if self.elapsed_seconds + delay >= limit:
            return False
        now = time.monotonic()
        if self._said is None or now - self._said >= _QUIET_SECONDS:
            self._said = now
            _LOG.warning("%s: %s failed (%s); trying again for up to %.0f s", self.shown, what, why, limit)
        time.sleep(delay)
        return True

    def within(self, most_seconds: float, work: Callable[[], _Result]) -> _Result:
        """Runs one attempt in a thread of its own; abandons it with a TimeoutError when it takes too long."""
        answers: queue.SimpleQueue[tuple[_Result | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((work(), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name="packhorse-store", daemon=True).start()
        seconds = self.attempt_seconds(most_seconds)
        for wait in _waits(seconds):
            try:
                answer, error = answers.get(timeout=wait)
            except queue.Empty:
                if self._said is None:
                    self._said = time.monotonic()
                    _LOG.warning("%s: no answer for %.0f s; waiting for up to %.0f s", self.shown, wait, seconds)
                continue
            if error is not None:
                raise error
            return answer  # type: ignore[return-value]
        raise TimeoutError(f"no answer within {seconds:g} s")


def _waits(seconds: float) -> Iterator[float]:
    """Yields how long to wait before a line in the log, and then the rest."""
    if seconds > _QUIET_SECONDS:
        yield _QUIET_SECONDS
        seconds -= _QUIET_SECONDS
    yield seconds
