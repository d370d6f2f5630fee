"""`PieceRule`: how many of its own tokens each sequence, or piece of one, puts into its room.

A room may be larger than its sequence (`extra_tokens`, `align`), and a sequence longer than its room (truncated or
split). Owns the rule, which servers that send tokens and clients that read them apply alike. Leaves the size of rooms
to `packhorse.topology`, and reading the tokens to the sources.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import TokenSourceError, refuse_length
from packhorse.topology import RoomRule

_NOT_CUT = 2**62
"""Stands for a component whose sequences were not cut, among lengths: more tokens than any sequence has."""


class CutRule(Protocol):
    """What was done with sequences that do not fit a bin, of a plan or of a mixture's component."""

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity, in tokens."""
        ...

    @property
    def over_length(self) -> str:
        """What was done with sequences that do not fit a bin."""
        ...

    @property
    def keep(self) -> str:
        """Which end of a truncated sequence stays."""
        ...


class PlanFacts(CutRule, Protocol):
    """The facts of a plan that the rule needs; a StreamHeader, a DatasetInfo and their messages have these fields."""

    @property
    def align(self) -> int:
        """Number of tokens of which every room is a multiple."""
        ...

    @property
    def extra_tokens(self) -> int:
        """Tokens kept free in each room."""
        ...

    @property
    def components(self) -> Iterable[CutRule]:
        """The components of a mixture; empty without a mixture."""
        ...


@dataclass(frozen=True, slots=True)
class PieceRule:
    """From a room, and a sequence's length in the source, to how many of its own tokens the room holds.

    Example:
        >>> rule = PieceRule(RoomRule(max_seq_len=8, align=4), longest=8)
        >>> ids, rooms, held = np.array([0, 1]), np.array([4, 8]), np.array([3, 11])
        >>> rule.own_lengths(ids, rooms, held, None).tolist()  # the second was truncated
        [3, 8]
    """

    rooms: RoomRule
    """How a room follows from a length."""
    longest: int | None = None
    """Most own tokens of a room, if longer sequences were truncated at their end, or split; None if they were not."""
    longest_of_components: tuple[int | None, ...] = ()
    """`longest` of each component of a mixture; empty without a mixture."""

    @classmethod
    def of(cls, plan: PlanFacts) -> "PieceRule":
        """Returns the rule of a dataset or a mixture, from its facts or from a stream's header."""
        rooms = RoomRule(plan.max_seq_len, plan.align, plan.extra_tokens)
        components = tuple(_longest_of(each, plan.align, plan.extra_tokens) for each in plan.components)
        return cls(rooms, None if components else _longest_of(plan, plan.align, plan.extra_tokens), components)

    def are_whole(self, first_tokens: NDArray[np.int64] | None) -> bool:
        """Returns whether every sequence is whole and fills its room, so that its length is that of its room."""
        longest = self.longest_of_components or (self.longest,)
        return self.rooms.is_plain and first_tokens is None and all(each is None for each in longest)

    def own_lengths(
        self,
        ids: NDArray[np.int64],
        planned: NDArray[np.int64],
        held: NDArray[np.int64],
        first_tokens: NDArray[np.int64] | None,
        component_ids: NDArray[np.integer] | None = None,
    ) -> NDArray[np.int64]:
        """Returns how many of its own tokens each sequence, or piece, puts into its room: int64 [S], at least 1.

        This is what is left of the sequence from the piece's first token on, or `longest` if more is left. It must need
        the planned room. A sequence that became longer in the source is not noticed if it still needs the same room.

        Args:
            ids: the sequences' ids: int64 [S].
            planned: each room in tokens: int64 [S].
            held: length of each whole sequence in the source, in tokens: int64 [S].
            first_tokens: first token of each piece: int64 [S]; None for all 0.
            component_ids: component of each sequence, in a mixture: integers [S].

        Raises:
            TokenSourceError: a sequence's length in the source does not need the planned room.
        """
        left = held if first_tokens is None else held - first_tokens
        longest = self._longest(component_ids)
        own = left if longest is None else np.minimum(left, longest)
        needed = self.rooms.room(own)
        is_wrong = (own < 1) | (needed != planned)
        if is_wrong.any():
            i = int(is_wrong.argmax())
            first = 0 if first_tokens is None else int(first_tokens[i])
            if self.rooms.is_plain:
                refuse_length(int(ids[i]), int(planned[i]), int(held[i]), start=first, is_whole=False)
            piece = f" from token {first} on" if first else ""
            raise TokenSourceError(
                f"sequence {ids[i]}: the plan has a room of {planned[i]} tokens for it{piece}, but the {held[i]} "
                f"tokens that the source holds need {needed[i]} with align {self.rooms.align} and extra_tokens "
                f"{self.rooms.extra_tokens}; use the token file that the dataset was prepared from"
            )
        return own

    def _longest(self, component_ids: NDArray[np.integer] | None) -> int | NDArray[np.int64] | None:
        """Returns `longest`: one number for all sequences, one for each (int64 [S]), or None if none was cut."""
        if component_ids is None or not self.longest_of_components:
            return self.longest
        longest = [_NOT_CUT if each is None else each for each in self.longest_of_components]
        return np.array(longest, dtype=np.int64)[component_ids]


def _longest_of(rule: CutRule, align: int, extra_tokens: int) -> int | None:
    """Returns the most own tokens of a room of a plan or a component; None if sequences were not cut."""
    rooms = RoomRule(rule.max_seq_len, align, extra_tokens)
    return rooms.longest if cuts_ends(rule.over_length, rule.keep) else None


def cuts_ends(over_length: str, keep: str) -> bool:
    """Returns whether a sequence may have tokens after those in its room: prepare cut off its end, or split it.

    Example:
        >>> cuts_ends("truncate", "head"), cuts_ends("truncate", "tail"), cuts_ends("split", "head")
        (True, False, True)

    Args:
        over_length: what prepare did with sequences that do not fit a bin: "error", "drop", "truncate" or "split".
        keep: which end of a truncated sequence stays, "head" or "tail".
    """
    return over_length == "split" or (over_length, keep) == ("truncate", "head")
