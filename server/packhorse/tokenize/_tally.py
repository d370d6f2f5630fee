"""What tokenizing counts: of one part, or of all parts together.

Owns the counts and how they add up; leaves what they mean to the summaries of `text` and `fine_tuning`.
"""

from dataclasses import dataclass, field
from typing import Self

from packhorse.tokenize.gate import MOST_NAMED, Skipped

_SUMMED = (
    "sequences",
    "tokens",
    "empty",
    "undecodable",
    "cut_sequences",
    "cut_tokens",
    "dropped",
)


@dataclass(slots=True)
class Tally:
    """Counts of some documents or rows."""

    sequences: int = 0
    tokens: int = 0
    longest: int = 0
    """The longest sequence, in tokens."""
    empty: int = 0
    undecodable: int = 0
    undecodable_named: list[str] = field(default_factory=list)
    cut_sequences: int = 0
    cut_tokens: int = 0
    dropped: int = 0
    """Sequences without a token to train on, left out."""
    dropped_named: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Optional columns that some line has."""

    def skip(self, skipped: Skipped) -> None:
        """Takes over what a pass over the documents left out."""
        self.empty += skipped.empty
        self.undecodable += skipped.undecodable
        self.undecodable_named = [*self.undecodable_named, *skipped.undecodable_named][:MOST_NAMED]

    def drop(self, origin: object, sequences: int = 1) -> None:
        """Counts the sequences of a row without a token to train on."""
        self.dropped += sequences
        if len(self.dropped_named) < MOST_NAMED:
            self.dropped_named.append(str(origin))

    def add(self, other: Self) -> None:
        """Adds the counts of what comes behind."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.seen = sorted({*self.seen, *other.seen})
        self.undecodable_named = [*self.undecodable_named, *other.undecodable_named][:MOST_NAMED]
        self.dropped_named = [*self.dropped_named, *other.dropped_named][:MOST_NAMED]
