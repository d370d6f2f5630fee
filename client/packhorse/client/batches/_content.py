"""What goes into the rooms of a batch: tokens, loss mask and separators.

Owns writing them to their places; leaves finding them to `sources`, their lengths to `rooms`, and the places to
`layout`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.separators import Separators
from packhorse.client.sources import TokenSource, TokenSourceError
from packhorse.client.sources.base import Gather
from packhorse.client.streams.blocks import AS_IT_IS, MASKED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """What goes into the rooms of n sequences."""

    ids: NDArray[np.int64]
    """Theirs: int64 [n]."""
    rooms: NDArray[np.int64]
    """Tokens of the rooms: int64 [n]."""
    lengths: NDArray[np.int64]
    """Tokens of the sequences, separators included: int64 [n]."""
    tokens: Gather
    """Writes their tokens."""
    mask: Gather | None
    """Writes their loss mask; None where every token is predicted."""
    first: int = 0
    """Number of the first of them among those that the two know."""
    first_tokens: NDArray[np.int64] | None = None
    """Where pieces begin in their sequences: int64 [n]; None where all begin at token 0."""
    held: NDArray[np.int64] | None = None
    """Tokens of the whole sequences: int64 [n]; None where that is what comes from the source."""
    has_bos: NDArray[np.bool_] | None = None
    """Which begin with a separator: bool [n]; None for none."""
    has_eos: NDArray[np.bool_] | None = None
    """Which end with a separator: bool [n]; None for none."""

    component_ids: NDArray[np.int32] | None = None
    """Which of a mixture's components they are of: int32 [n]; None where there is one dataset."""
    redactions: NDArray[np.int64] | None = None
    """What is taken away of each, as a block tells it: int64 [n]; None where nothing is."""

    def slice(self, first: int, last: int) -> "Content":
        """Returns the sequences [first, last), as views."""
        some = slice(first, last)
        return Content(
            ids=self.ids[some],
            rooms=self.rooms[some],
            lengths=self.lengths[some],
            tokens=self.tokens,
            mask=self.mask,
            first=self.first + first,
            first_tokens=None if self.first_tokens is None else self.first_tokens[some],
            held=None if self.held is None else self.held[some],
            has_bos=None if self.has_bos is None else self.has_bos[some],
            has_eos=None if self.has_eos is None else self.has_eos[some],
            component_ids=None if self.component_ids is None else self.component_ids[some],
            redactions=None if self.redactions is None else self.redactions[some],
        )

    def write_tokens(self, out: NDArray[np.int64], begins: NDArray[np.int64], separators: Separators) -> None:
        """Writes tokens and separators at each start."""
        self._write(self.tokens, out, begins)
        for i in self.redacted():
            assert self.redactions is not None
            if (token := int(self.redactions[i])) != MASKED:
                out[begins[i] : begins[i] + self.lengths[i]] = token
        if self.has_bos is not None and separators.bos_token_id is not None:
            out[begins[self.has_bos]] = separators.bos_token_id
        if self.has_eos is not None and separators.eos_token_id is not None:
            out[self._eos_indices(begins)] = separators.eos_token_id

    def write_mask(self, loss_mask: TokenSource, out: NDArray[np.int64], begins: NDArray[np.int64]) -> None:
        """Writes the loss mask likewise: a separator in front is not predicted, one behind with the token before it."""
        assert self.mask is not None
        if self.held is not None:
            masked = loss_mask.of_sequences(self.component_ids).lengths(self.ids)
            if (masked != self.held).any():
                i = int((masked != self.held).argmax())
                raise TokenSourceError(
                    f"sequence {self.ids[i]}: the loss mask in {loss_mask.where} holds {masked[i]} values for "
                    f"its {self.held[i]} tokens; use the mask that was written with these tokens"
                )
        self._write(self.mask, out, begins)
        if self.has_bos is not None:
            out[begins[self.has_bos]] = 0
        if self.has_eos is not None:
            last = self._eos_indices(begins)
            out[last] = out[last - 1]

    def redacted(self) -> list[int]:
        """Indices of the sequences of which something is taken away; none of their tokens is predicted."""
        return [] if self.redactions is None else np.flatnonzero(self.redactions != AS_IT_IS).tolist()

    def _write(self, gather: Gather, out: NDArray[np.int64], begins: NDArray[np.int64]) -> None:
        out_starts = begins if self.has_bos is None else begins + self.has_bos
        gather(self.first, self.first + len(self.ids), out, out_starts)

    def _eos_indices(self, begins: NDArray[np.int64]) -> NDArray[np.int64]:
        return (begins + self.lengths - 1)[self.has_eos]
