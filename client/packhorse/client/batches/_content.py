"""What a batch's tensors hold, position by position: tokens, position ids, and the values of each sequence.

Owns writing them to their places; leaves finding them to `sources`, their lengths to `rooms`, and the places to
`layout`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
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


def write_position_ids(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Writes 0, 1, 2, … within each extent of a layout of T tokens: int64 [T]."""
    np.subtract(_integers(len(position_ids)), layout.extent_starts.repeat(layout.extent_lengths), out=position_ids)


def continue_positions(
    position_ids: NDArray[np.int64], layout: PackLayout, first_tokens: NDArray[np.int64], num_before: int
) -> None:
    """Moves positions of pieces on by where they begin in their sequences: int64 [n].

    A separator in front of the whole sequence has position 0, so `num_before` more for every piece but the first.
    """
    is_later = first_tokens > 0
    ranges = zip(layout.starts[is_later].tolist(), layout.rooms[is_later].tolist(), strict=True)
    for (start, room), first_token in zip(ranges, first_tokens[is_later].tolist(), strict=True):
        position_ids[start : start + room] += first_token + num_before


def follow_prefixes(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Lets positions of sequences that see a prefix go on where it ends: int64 [T]."""
    for sequence in np.flatnonzero(layout.prefixes >= 0).tolist():
        start = int(layout.starts[sequence])
        position_ids[start : start + int(layout.rooms[sequence])] += layout.lengths[layout.prefixes[sequence]]


def _integers(count: int) -> NDArray[np.int64]:
    """0, 1, 2, …: int64 [count]; the same memory for every batch, and not to be written to."""
    return _integers_below(1 << count.bit_length())[:count]


@lru_cache(maxsize=1)
def _integers_below(end: int) -> NDArray[np.int64]:
    return np.arange(end)


_MOST_TOKENS = 1 << 31


def check_tokens(input_ids: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Refuses tokens that no model has.

    Args:
        input_ids: tokens of all rows end to end, padding included: int64 [T].
        layout: where n sequences lie in them.
        ids: theirs: int64 [n].
        source: where the tokens are from.

    Raises:
        TokenSourceError: a token is negative, or 2^31 and more; names its sequence.
    """
    if not source.may_be_out_of_range:
        return
    unsigned = input_ids.view(np.uint64)  # negative tokens are the largest, and so one look finds both
    if unsigned.max(initial=0) >= _MOST_TOKENS:
        at = int(unsigned.argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: {source.where} holds the token {input_ids[at]} there, but token ids "
            "are in [0, 2^31); write the file again without it"
        )


def check_loss_mask(values: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Refuses what is neither 0 nor 1, as when a token file is given for a mask.

    Args:
        values: a loss mask of all rows end to end, 0 on padding: int64 [T].
        layout: where n sequences lie in it.
        ids: theirs: int64 [n].
        source: where the mask is from.

    Raises:
        TokenSourceError: a value is another; names its sequence.
    """
    if values.min(initial=0) < 0 or values.max(initial=0) > 1:
        at = int(((values < 0) | (values > 1)).argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: the loss mask in {source.where} holds {values[at]} there, but it may "
            "hold only 1 (predict this token) and 0 (do not); is it a token file?"
        )


def _id_at(index: int, layout: PackLayout, ids: NDArray[np.int64]) -> int:
    """The id of the sequence that lies at an index in T."""
    return int(ids[np.searchsorted(layout.starts, index, side="right") - 1])
