"""Places in a bin that are larger than what they hold: how many tokens of its own each sequence puts into its place.

Owns the arithmetic of `align` and `extra_tokens` on the trainer's side, and the check that it comes to what was
planned; leaves tokens to `sources` and the layout of rows to `batch`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources import TokenSourceError
from packhorse.client.sources.base import refuse_length


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRule:
    """How a place follows from a length: ceil((length + extra_tokens) / align) · align tokens."""

    max_seq_len: int
    """A bin's capacity in tokens."""
    align: int
    """A place is a multiple of so many tokens; at least 1."""
    extra_tokens: int
    """Tokens kept free in every place, before rounding; at least 0."""
    truncate: bool
    """Whether a sequence longer than `longest` was cut to that: truncated at its end, or split."""

    @property
    def longest(self) -> int:
        """The most tokens of its own that a sequence can have in a bin."""
        return self.max_seq_len // self.align * self.align - self.extra_tokens

    def own_lengths(
        self,
        ids: NDArray[np.int64],
        planned: NDArray[np.int64],
        held: NDArray[np.int64],
        first_tokens: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Returns how many tokens of its own each sequence, or piece, puts into its place: int64 [S], at least 1.

        With `truncate` a sequence, or what is left of it from its piece's first token on, either is at least `longest`
        and fills a whole place, or comes to the planned place exactly. A source whose whole piece is followed by more
        than was planned cannot be told from the right one here; the piece that follows tells.

        Args:
            ids: int64 [S].
            planned: size of each place in tokens: int64 [S].
            held: length of each whole sequence in the source, in tokens: int64 [S].
            first_tokens: first token of each piece: int64 [S]; None for all 0.

        Raises:
            TokenSourceError: a sequence's length in the source does not come to the planned one.
        """
        left = held if first_tokens is None else held - first_tokens
        own = np.minimum(left, self.longest) if self.truncate else left
        comes_to = -(-(own + self.extra_tokens) // self.align) * self.align
        is_wrong = (own < 1) | (comes_to != planned)
        if is_wrong.any():
            i = int(is_wrong.argmax())
            start = 0 if first_tokens is None else int(first_tokens[i])
            if self.align == 1 and self.extra_tokens == 0:
                refuse_length(int(ids[i]), int(planned[i]), int(held[i]), start=start, is_whole=False)
            piece = f" from token {start} on" if start else ""
            raise TokenSourceError(
                f"sequence {ids[i]}: the plan has a place of {planned[i]} tokens for it{piece}, but the {held[i]} "
                f"tokens that the source holds come to {comes_to[i]} with align {self.align} and extra_tokens "
                f"{self.extra_tokens}; use the token file that the dataset was prepared from"
            )
        return own
