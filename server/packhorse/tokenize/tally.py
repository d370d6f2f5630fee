"""Counts of documents or rows: those of one part, and of all parts together.

Owns adding them up. What one pass leaves out is in `input/skipped`.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from packhorse.tokenize.input.skipped import MOST_NAMED, Skipped

_SUMMED = (
    "sequences",
    "tokens",
    "empty",
    "undecodable",
    "bad",
    "own_ends",
    "special_ids",
    "unknown",
    "cut_sequences",
    "cut_tokens",
    "dropped",
    "too_long",
    "open_turns",
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
    bad: int = 0
    bad_named: list[str] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)
    """Special token → how often texts spell it."""
    special_ids: int = 0
    """Special tokens that texts became."""
    own_ends: int = 0
    """Tokens that begin or end a sequence and that its text spelled already."""
    unknown: int = 0
    """Characters that the tokenizer does not know, dropped or written as its unknown token."""
    cut_sequences: int = 0
    cut_tokens: int = 0
    dropped: int = 0
    """Sequences without a token to train on, left out."""
    dropped_named: list[str] = field(default_factory=list)
    too_long: int = 0
    """Sequences that the cutoff could not make fit, left out."""
    too_long_named: list[str] = field(default_factory=list)
    open_turns: int = 0
    """Trained turns that no special token ends."""
    open_named: list[str] = field(default_factory=list)
    unused: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Field → rows, values, and the first row of which something is not in the tokens."""
    seen: list[str] = field(default_factory=list)
    """Optional columns that some line has."""

    def skip(self, skipped: Skipped) -> None:
        """Adds what a pass over the documents left out."""
        self.empty += skipped.empty
        self.undecodable += skipped.undecodable
        self.undecodable_named = [*self.undecodable_named, *skipped.undecodable_named][:MOST_NAMED]
        self.bad += skipped.bad
        self.bad_named = [*self.bad_named, *skipped.bad_named][:MOST_NAMED]

    def drop(self, origin: object, sequences: int = 1) -> None:
        """Counts the sequences of a row without a token to train on."""
        self.dropped += sequences
        if len(self.dropped_named) < MOST_NAMED:
            self.dropped_named.append(str(origin))

    def note_unused(self, name: str, rows: int, values: int, first: str) -> None:
        """Counts rows of which a field, or some of it, is not in the tokens."""
        entry = self.unused.setdefault(name, {"rows": 0, "values": 0, "first": first})
        entry["rows"] += rows
        entry["values"] += values

    def add(self, other: Self) -> None:
        """Adds the counts of later ones."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.seen = sorted({*self.seen, *other.seen})
        self.undecodable_named = [*self.undecodable_named, *other.undecodable_named][:MOST_NAMED]
        self.too_long_named = [*self.too_long_named, *other.too_long_named][:MOST_NAMED]
        self.open_named = [*self.open_named, *other.open_named][:MOST_NAMED]
        for name, entry in other.unused.items():
            self.note_unused(name, **entry)
        self.bad_named = [*self.bad_named, *other.bad_named][:MOST_NAMED]
        self.special = {
            text: self.special.get(text, 0) + other.special.get(text, 0)
            for text in sorted({*self.special, *other.special})
        }
        self.dropped_named = [*self.dropped_named, *other.dropped_named][:MOST_NAMED]
