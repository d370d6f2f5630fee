"""Rows as they are looked at: which sequences lie in each, how long they are, and what is known of them.

Owns what pictures and explanations are made of; leaves finding it out to `batch` and `bins`, and
drawing to `_svg` and `picture`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSequence:
    """A sequence, or a piece of one, in its row.

    Example:
        >>> SeenSequence(id=7, room=8, length=5).facts()
        {'id': 7, 'room': 8, 'length': 5}
    """

    id: int
    """Of the sequence."""
    key: str = ""
    """What its owner calls it; empty where it has no key."""
    room: int
    """Tokens that it takes up in its row."""
    length: int | None = None
    """Its tokens in that room; None where only the room is known."""
    first_token: int = 0
    """Where it begins in its sequence; not 0 for later pieces."""
    group: int | None = None
    """Of the sequences that share its bin; None where it is of none."""
    cost: int | None = None
    """cost_linear · room + room²; None where nobody asked."""
    origin: str = ""
    """Where it comes from, e.g. a file and a row of it."""
    first_tokens: tuple[int, ...] = ()
    """Its first tokens, where there is a token source."""
    text: str = ""
    """What they say, where there is a tokenizer."""
    redaction: str = ""
    """What a takedown does to it, e.g. "masked"; empty for nothing."""

    @property
    def tokens(self) -> int:
        """Its tokens, as far as they are known: its length, or else its room."""
        return self.room if self.length is None else self.length

    def facts(self) -> dict[str, Any]:
        """Returns what is known of it, for JSON."""
        facts: dict[str, Any] = {"id": self.id, **({"key": self.key} if self.key else {})}
        facts |= {"room": self.room, "length": self.length}
        if self.first_token:
            facts["first_token"] = self.first_token
        if self.group is not None:
            facts["group"] = self.group
        rest = {"cost": self.cost, "origin": self.origin, "first_tokens": list(self.first_tokens), "text": self.text}
        rest["redaction"] = self.redaction
        return facts | {name: value for name, value in rest.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenRow:
    """A row: its sequences from the left, then padding.

    Example:
        >>> row = SeenRow(name="row 0", capacity=16, sequences=(SeenSequence(id=7, room=8, length=5),))
        >>> row.num_tokens, row.fullness
        (5, 0.3125)
    """

    name: str
    """What it is called, e.g. "row 0" or "position 17"."""
    capacity: int
    """Tokens that fit it."""
    sequences: tuple[SeenSequence, ...]
    """From the left."""
    position: int | None = None
    """Of the bin in its epoch; -1 for a bin that the remainder policy added; None where it is not known."""
    targets: NDArray[np.bool_] | None = None
    """Which tokens are predicted: bool [capacity]; None where it is not known."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def fullness(self) -> float:
        """The share of the row that is no padding, in [0, 1]."""
        return self.num_tokens / self.capacity

    @property
    def cost(self) -> int:
        """Of its sequences together."""
        return sum(sequence.cost or 0 for sequence in self.sequences)

    def facts(self) -> dict[str, Any]:
        """Returns what is known of it, for JSON."""
        facts: dict[str, Any] = {"name": self.name, "capacity": self.capacity, "num_tokens": self.num_tokens}
        if self.position is not None:
            facts["position"] = self.position
        if self.cost:
            facts["cost"] = self.cost
        if self.targets is not None:
            facts["num_targets"] = int(self.targets.sum())
        return facts | {"sequences": [sequence.facts() for sequence in self.sequences]}


class Stretch(NamedTuple):
    """A part of a row that is drawn in one piece."""

    start: int
    """First token in the row."""
    end: int
    """Behind its last."""
    first: int
    """Index of its first sequence."""
    sequences: Sequence[SeenSequence]
    """One, or several neighbours that are too short to be told apart; none for what is left of the row."""


def stretches(row: SeenRow, least: float, together: float) -> Iterator[Stretch]:
    """Yields what to draw of a row, from the left.

    Args:
        row: the row.
        least: neighbours with rooms of fewer tokens come as one,
        together: until they have so many.
    """
    start = end = first = 0
    short: list[SeenSequence] = []
    for index, sequence in enumerate(row.sequences):
        if short and (sequence.room >= least or end - start >= together):
            yield Stretch(start, end, first, short)
            short, start, first = [], end, index
        short.append(sequence)
        end += sequence.room
        if sequence.room >= least:
            yield Stretch(start, end, first, short)
            short, start, first = [], end, index + 1
    if short:
        yield Stretch(start, end, first, short)
    if end < row.capacity:
        yield Stretch(end, row.capacity, len(row.sequences), ())
