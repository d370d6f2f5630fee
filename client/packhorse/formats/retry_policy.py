"""`RetryPolicy`: how long to try without an answer, and how long to wait between attempts.

Owns the numbers and their defaults, for calls to servers and requests to stores alike. Leaves attempts to read from
stores to `object_store.attempts`.
"""

import os
import random
from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Real

TIMEOUT_VARIABLE = "PACKHORSE_TIMEOUT_SECONDS"
"""Environment variable: how long to try without an answer if no policy is given."""

_JITTER = random.SystemRandom()
"""The system's generator: if ranks seed the global one alike, they would all try again at the same moment."""
_MOST_DOUBLINGS = 60
"""Doublings of the first delay, after which every delay is at its upper limit; keeps the power of 2 small."""


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
    """How long to try if the server or store has never answered: its address may be wrong."""
    first_delay_seconds: float = 0.05
    """Upper limit of the first delay; the limit doubles with each delay."""
    most_delay_seconds: float = 5.0
    """Upper limit of every delay."""

    def __post_init__(self) -> None:
        """Checks every number."""
        for parameter in fields(self):
            checked_seconds(parameter.name, getattr(self, parameter.name))
        if not 0 < self.first_delay_seconds <= self.most_delay_seconds:
            raise ValueError(f"retry delays must be above 0, the deadline and connect_seconds at least 0, got {self}")

    def limit_seconds(self, *, is_known: bool) -> float:
        """Returns how long to try in all; `is_known` says that the server or store has answered before."""
        return self.deadline_seconds if is_known else min(self.deadline_seconds, self.connect_seconds)

    def delay_seconds(self, num_failures: int) -> float:
        """Draws the delay after one or more failures in a row."""
        longest = min(self.most_delay_seconds, self.first_delay_seconds * 2 ** min(num_failures - 1, _MOST_DOUBLINGS))
        return _JITTER.uniform(0, longest)


def checked_seconds(name: str, value: object) -> float:
    """Returns the value of a parameter in seconds; a ValueError with its name if it is no number or is below 0."""
    # `not … >= 0` refuses NaN too, of which `< 0` is False.
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name} must be a number of seconds, at least 0, got {value!r:.60}")
    return float(value)


def default_retry() -> RetryPolicy:
    """Returns the policy that applies if none is given.

    If TIMEOUT_VARIABLE is set, its value is both `deadline_seconds` and `connect_seconds`.

    Raises:
        ValueError: the variable is not a number above 0.
    """
    text = os.environ.get(TIMEOUT_VARIABLE)
    if not text:
        return RetryPolicy()
    with suppress(ValueError):
        seconds = checked_seconds(TIMEOUT_VARIABLE, float(text))
        if seconds > 0:
            return RetryPolicy(deadline_seconds=seconds, connect_seconds=seconds)
    raise ValueError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got {text!r:.60}")
