"""Counts of tokenizing one part, or all parts together.

Owns adding them up. Counts of what one pass leaves out are in `input/skipped`.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Self

from packhorse.tokenize.input.skipped import MOST_NAMED, Skipped


@dataclass(slots=True)
class Tally:
    """Counts of one part, or of several; the fields `*_named` have the first few examples."""

    sequences: int = 0
    """Sequences written."""
    tokens: int = 0
    """Tokens written."""
    longest: int = 0
    """The longest sequence, in tokens."""
    empty: int = 0
    """Documents or rows without content, left out."""
    undecodable: int = 0
    """Documents or lines that are binary or not UTF-8, left out."""
    undecodable_named: list[str] = field(default_factory=list)
    bad: int = 0
    """Rows that cannot be read or encoded, left out."""
    bad_named: list[str] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)
    """Special token → how often texts spell it."""
    special_ids: int = 0
    """Special tokens in the output that come from texts."""
    own_ends: int = 0
    """Tokens that begin or end a sequence, but were not added because the text spells them."""
    unknown: int = 0
    """Characters that the tokenizer does not know, dropped or written as its unknown token."""
    cut_sequences: int = 0
    """Sequences that the cutoff shortened."""
    cut_tokens: int = 0
    """Tokens that the cutoff cut off."""
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
    """Field with values that are not in the tokens → {"rows": …, "values": …, "first": the first such row}."""
    seen: list[str] = field(default_factory=list)
    """Optional columns that at least one row has."""

    def skip(self, skipped: Skipped) -> None:
        """Adds the counts of what a pass left out."""
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
        """Counts rows in which values of a field are not in the tokens; a field that is new keeps `first`."""
        entry = self.unused.setdefault(name, {"rows": 0, "values": 0, "first": first})
        entry["rows"] += rows
        entry["values"] += values

    def add(self, other: Self) -> None:
        """Adds the counts of a later part."""
        for count in fields(self):
            ours, theirs = getattr(self, count.name), getattr(other, count.name)
            if count.name == "longest":
                self.longest = max(ours, theirs)
            elif isinstance(ours, int):
                setattr(self, count.name, ours + theirs)
            elif count.name.endswith("_named"):
                setattr(self, count.name, [*ours, *theirs][:MOST_NAMED])
        self.seen = sorted({*self.seen, *other.seen})
        for name, entry in other.unused.items():
            self.note_unused(name, **entry)
        self.special = {
            text: self.special.get(text, 0) + other.special.get(text, 0)
            for text in sorted({*self.special, *other.special})
        }
