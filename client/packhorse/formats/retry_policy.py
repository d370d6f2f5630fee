"""How long and how often what failed is tried again: a server's answer, an object store's.

Owns the numbers; leaves trying to its users.
"""

from dataclasses import dataclass, fields
from numbers import Real


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, up to a deadline.

    The deadline is kept within a second. It counts from the beginning of a call, or of opening a stream. Where an open
    stream breaks, it counts from that failure, and every message that arrives begins it anew.

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
    """How long to go on without an answer; 0 gives up at the first failure."""
    connect_seconds: float = 10.0
    """How long to go on where the target has never answered: its address may be wrong."""
    first_delay_seconds: float = 0.05
    """Upper end of the first delay; each further one doubles."""
    most_delay_seconds: float = 5.0
    """Upper end of every delay."""

    def __post_init__(self) -> None:
        """Checks every number."""
        for field in fields(self):
            checked_seconds(field.name, getattr(self, field.name))
        delays = 0 < self.first_delay_seconds <= self.most_delay_seconds
        if not delays or not (self.deadline_seconds >= 0 and self.connect_seconds >= 0):
            raise ValueError(f"retry delays must be above 0, the deadline and connect_seconds at least 0, got {self}")


def checked_seconds(name: str, value: object) -> float:
    """Returns a time in seconds; a ValueError with its name where it is no number, or below 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name} must be a number of seconds, at least 0, got {value!r:.60}")
    return float(value)
