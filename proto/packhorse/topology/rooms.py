"""The room of a sequence: how many tokens it takes up in its bin.

Owns the formula from length to room, and its inverse. Both take ints or NumPy arrays of integers.
"""

from dataclasses import dataclass
from typing import Any

from packhorse.topology.checks import checked_integer

LEAST_EXTRA_TOKENS = -1
"""Least `extra_tokens`. -1 leaves each sequence's last token out of its room: models predict it but never read it."""


@dataclass(frozen=True, slots=True)
class RoomRule:
    """How a room follows from a length: ceil((length + extra_tokens) / align) · align tokens, and never 0.

    Example:
        >>> rule = RoomRule(max_seq_len=2048, align=8, extra_tokens=2)
        >>> rule.room(5), rule.room(7), rule.longest
        (8, 16, 2046)
        >>> rule = RoomRule(max_seq_len=2048, extra_tokens=-1)  # without the last token, which is only predicted
        >>> rule.room(5), rule.room(1), rule.longest
        (4, 1, 2049)

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    max_seq_len: int
    """A bin's capacity in tokens; at least 1."""
    align: int = 1
    """A room is a multiple of this many tokens; at least 1."""
    extra_tokens: int = 0
    """Tokens kept free for each sequence in addition to its own, before rounding; at least `LEAST_EXTRA_TOKENS`."""

    def __post_init__(self) -> None:
        """Checks every number."""
        checked_integer("max_seq_len", self.max_seq_len, 1)
        checked_integer("align", self.align, 1)
        checked_integer("extra_tokens", self.extra_tokens, LEAST_EXTRA_TOKENS)

    @property
    def longest(self) -> int:
        """The longest sequence that fits an empty bin, in tokens of its own; below 1 if none fits."""
        aligned = self.max_seq_len // self.align * self.align
        return aligned - self.extra_tokens if aligned else 0

    @property
    def longest_length(self) -> int:
        """The greatest length that is accepted before its room is computed: `longest`, but at least `max_seq_len`.

        So a length that fits a bin but whose room does not is refused with a message about the room.
        """
        return max(self.max_seq_len, self.longest)

    @property
    def is_plain(self) -> bool:
        """Whether every room equals its length."""
        return self.align == 1 and self.extra_tokens == 0

    def room(self, length: Any) -> Any:
        """Returns the room of a length, or of each in an array, in tokens."""
        kept = length + self.extra_tokens
        if self.extra_tokens < 0:
            kept = kept + (kept < 1)  # a sequence of one token still takes up one, though nothing is predicted from it
        return -(-kept // self.align) * self.align

    def longest_in(self, room: Any) -> Any:
        """Returns the greatest length that has this room."""
        return room - self.extra_tokens
