"""Rows to draw: facts of their sequences, and the bars that stand for them.

Owns the classes that both drawings take, and which sequences are drawn as one bar. Leaves filling them in to
`pictures/batches` (from a batch) and `_row_maker` (from a server's bins), and drawing to `_text` and `_svg`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.summary import fullness_text
from packhorse.formats.keys import shown_key


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSequence:
    """A sequence, or a piece of one, in its row.

    Example:
        >>> SeenSequence(id=7, room=8, length=5).facts()
        {'id': 7, 'room': 8, 'length': 5}
    """

    id: int
    """The sequence's id."""
    key: str = ""
    """Its key, the name that its owner uses; empty without one."""
    room: int
    """Tokens that it takes up in its row."""
    length: int | None = None
    """Its length in tokens; None if only the room is known."""
    first_token: int = 0
    """Index of its first token in the whole sequence; above 0 for later pieces."""
    group: int | None = None
    """Id of its group; None without one."""
    cost: int | None = None
    """cost_linear · room + room²; None if it was not computed."""
    origin: str = ""
    """Where it comes from, such as a row and a file."""
    first_tokens: tuple[int, ...] = ()
    """Its first tokens; empty without a token source."""
    text: str = ""
    """The text of its first tokens; empty without a tokenizer."""
    redaction: str = ""
    """The redaction that a takedown makes of it, such as "masked"; empty for none."""

    @property
    def num_tokens(self) -> int:
        """Its length; if that is unknown, its room."""
        return self.room if self.length is None else self.length

    @property
    def title(self) -> str:
        """Its id and key, where its piece begins, and its group, in words."""
        key = f" {shown_key(self.key)}" if self.key else ""
        piece = f" from token {self.first_token:,}" if self.first_token else ""
        group = "" if self.group is None else f" of group {self.group}"
        return f"id {self.id}{key}{piece}{group}"

    @property
    def beginning(self) -> str:
        """Its first tokens, as text if that is known, else as numbers; empty without a token source."""
        return repr(self.text) if self.text else " ".join(map(str, self.first_tokens))

    def facts(self) -> dict[str, Any]:
        """Returns as JSON values its id, its room, its length (null if unknown), and what else is known of it."""
        facts: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "length" or value != field.default:
                facts[field.name] = list(value) if isinstance(value, tuple) else value
        return facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenRow:
    """A row: its sequences from the left, then padding.

    Example:
        >>> row = SeenRow(name="row 0", capacity=16, sequences=(SeenSequence(id=7, room=8, length=5),))
        >>> row.num_tokens, row.fullness
        (5, 0.3125)
    """

    name: str
    """For example "row 0" or "position 17"."""
    capacity: int
    """Tokens that fit into it."""
    sequences: tuple[SeenSequence, ...]
    """Its sequences, from the left."""
    position: int | None = None
    """Position of the bin in its epoch; -1 for a bin that the remainder policy added; None if unknown."""
    targets: NDArray[np.bool_] | None = None
    """Whether each token is a target: bool [capacity]; None if unknown."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(sequence.num_tokens for sequence in self.sequences)

    @property
    def fullness(self) -> float:
        """The share of the row that is not padding, in [0, 1]."""
        return self.num_tokens / self.capacity

    @property
    def cost(self) -> int:
        """Cost of all sequences."""
        return sum(sequence.cost or 0 for sequence in self.sequences)

    def facts(self) -> dict[str, Any]:
        """Returns the facts that are known, as JSON values."""
        facts: dict[str, Any] = {"name": self.name, "capacity": self.capacity, "num_tokens": self.num_tokens}
        if self.position is not None:
            facts["position"] = self.position
        if self.cost:
            facts["cost"] = self.cost
        if self.targets is not None:
            facts["num_targets"] = int(self.targets.sum())
        return facts | {"sequences": [sequence.facts() for sequence in self.sequences]}


class Bar(NamedTuple):
    """A range of a row's tokens that is drawn as one bar."""

    start: int
    """First token in the row."""
    end: int
    """End of the range, exclusive."""
    first: int
    """Index in the row of its first sequence; for the padding at the row's end, the number of sequences."""
    sequences: Sequence[SeenSequence]
    """One sequence, or several neighbours that are too short to draw apart; empty for the padding at the row's end."""


def bars(row: SeenRow, narrowest: float, enough: float) -> Iterator[Bar]:
    """Yields the bars of a row, from the left.

    Args:
        row: the row.
        narrowest: tokens of a room from which a sequence has a bar of its own. Shorter neighbours share bars.
        enough: tokens at which a shared bar ends.
    """
    start = end = 0  # of the bar that is being filled, in tokens of the row
    first = 0  # index of its first sequence
    short: list[SeenSequence] = []  # its sequences, none of which has a bar of its own
    for index, sequence in enumerate(row.sequences):
        is_long = sequence.room >= narrowest
        if short and (is_long or end - start >= enough):
            yield Bar(start, end, first, short)
            short = []
        if not short:
            start, first = end, index
        end += sequence.room
        if is_long:
            yield Bar(start, end, first, [sequence])
        else:
            short.append(sequence)
    if short:
        yield Bar(start, end, first, short)
    if end < row.capacity:
        yield Bar(end, row.capacity, len(row.sequences), ())


def summary_of(rows: Sequence[SeenRow], capacity: int) -> str:
    """Returns how full the rows are, in one line."""
    num_sequences = sum(len(row.sequences) for row in rows)
    return fullness_text(len(rows), capacity, num_sequences, sum(row.num_tokens for row in rows))
