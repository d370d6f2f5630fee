"""The contents of a batch's tensors: writes tokens, separators, the loss mask and position ids into arrays.

Owns `Content`, the sequences of a batch before they are written: how it is made of bins, how it is written, and the
checks of what a token source returns. Leaves labels to `_labels`, reading tokens to `packhorse.tokens`, where sequences
lie to `layout`, and the order of these steps to `batch`.

Legend: n sequences, T tokens of all rows end to end.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.row_format import MAX_TOKEN_ID, Separators
from packhorse.client.streams.blocks import AS_IT_IS, MASKED, BinBlock
from packhorse.client.streams.sent_tokens import TokensFromServer
from packhorse.tokens import TokenSource, TokenSourceError
from packhorse.tokens.base import Gather
from packhorse.tokens.pieces import PieceRule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """The sequences, or pieces of sequences, that fill the rooms of some rows, and how to write them."""

    ids: NDArray[np.int64]
    """Ids of the sequences: int64 [n]."""
    rooms: NDArray[np.int64]
    """Tokens of the rooms: int64 [n]."""
    lengths: NDArray[np.int64]
    """Tokens of the sequences, separators included: int64 [n]."""
    gather_tokens: Gather
    """Function that writes the sequences' tokens."""
    gather_mask: Gather | None
    """Function that writes the sequences' loss mask; None if every token is predicted."""
    first: int = 0
    """Index of the first of these sequences among all that the two functions know."""
    first_tokens: NDArray[np.int64] | None = None
    """Number of each piece's first token in its sequence: int64 [n]; None if all begin at token 0."""
    source_lengths: NDArray[np.int64] | None = None
    """Tokens of the whole sequences in the source: int64 [n]; None if each comes whole."""
    has_bos: NDArray[np.bool_] | None = None
    """Whether each sequence begins with a separator: bool [n]; None if none does."""
    has_eos: NDArray[np.bool_] | None = None
    """Whether each sequence ends with a separator: bool [n]; None if none does."""
    component_ids: NDArray[np.int32] | None = None
    """Index of each sequence's component in the mixture: int32 [n]; None for a single dataset."""
    redactions: NDArray[np.int64] | None = None
    """Redaction of each sequence, as in `BinBlock.redactions`: int64 [n]; None if there are none."""

    def slice(self, first: int, last: int) -> "Content":
        """Returns the sequences [first, last), as views."""

        def part(values: Any) -> Any:
            return None if values is None else values[first:last]

        return Content(
            ids=part(self.ids),
            rooms=part(self.rooms),
            lengths=part(self.lengths),
            gather_tokens=self.gather_tokens,
            gather_mask=self.gather_mask,
            first=self.first + first,
            first_tokens=part(self.first_tokens),
            source_lengths=part(self.source_lengths),
            has_bos=part(self.has_bos),
            has_eos=part(self.has_eos),
            component_ids=part(self.component_ids),
            redactions=part(self.redactions),
        )

    def write_tokens(self, out: NDArray[np.int64], starts: NDArray[np.int64], separators: Separators) -> None:
        """Writes the tokens and separators of each sequence, from its start on.

        Args:
            out: receives them: int64 [T].
            starts: index in `out` of each sequence's first token: int64 [n].
            separators: the tokens before and after a sequence.
        """
        self._write(self.gather_tokens, out, starts)
        for i in self.redacted_indices():
            assert self.redactions is not None
            if (token := int(self.redactions[i])) != MASKED:
                out[starts[i] : starts[i] + self.lengths[i]] = token
        if self.has_bos is not None and separators.bos_token_id is not None:
            out[starts[self.has_bos]] = separators.bos_token_id
        if self.has_eos is not None and separators.eos_token_id is not None:
            out[self._eos_indices(starts)] = separators.eos_token_id

    def write_mask(self, loss_mask: TokenSource, out: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        """Writes the loss mask of each sequence; an end separator is predicted if the token before it is.

        Args:
            loss_mask: the source of the mask, whose lengths are compared with the tokens'.
            out: receives 1 for a token to predict and 0 for others: int64 [T].
            starts: index in `out` of each sequence's first token: int64 [n].

        Raises:
            TokenSourceError: the mask has another length than the tokens.
        """
        assert self.gather_mask is not None
        server_has_compared = isinstance(loss_mask, TokensFromServer)
        if self.source_lengths is not None and not server_has_compared:
            mask_lengths = loss_mask.of_sequences(self.component_ids).lengths(self.ids)
            if (mask_lengths != self.source_lengths).any():
                i = int((mask_lengths != self.source_lengths).argmax())
                raise TokenSourceError(
                    f"sequence {self.ids[i]}: the loss mask in {loss_mask.where} holds {mask_lengths[i]} values for "
                    f"its {self.source_lengths[i]} tokens; use the mask that was written with these tokens"
                )
        self._write(self.gather_mask, out, starts)
        if self.has_bos is not None:
            out[starts[self.has_bos]] = 0
        if self.has_eos is not None:
            eos = self._eos_indices(starts)
            out[eos] = out[eos - 1]

    def redacted_indices(self) -> list[int]:
        """Returns the indices of the redacted sequences, whose tokens are not predicted."""
        return [] if self.redactions is None else np.flatnonzero(self.redactions != AS_IT_IS).tolist()

    def is_cut(self, i: int) -> bool:
        """Returns whether only a part of sequence i is in its room."""
        if self.source_lengths is None:
            return False
        num_added = sum(int(has[i]) for has in (self.has_bos, self.has_eos) if has is not None)
        return bool(self.lengths[i] - num_added < self.source_lengths[i])

    def _write(self, gather: Gather, out: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        gather(self.first, self.first + len(self.ids), out, starts if self.has_bos is None else starts + self.has_bos)

    def _eos_indices(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        return (starts + self.lengths - 1)[self.has_eos]


def content_of(
    block: BinBlock,
    source: TokenSource,
    loss_mask: TokenSource | None,
    separators: Separators,
    pieces: PieceRule | None,
) -> Content:
    """Returns the tokens and separators that go into each room of a block, ready to be written.

    `pieces` is the rule by which the plan cut sequences; None if each comes whole and fills its room, so that the
    source's lengths are not needed.
    """
    ids, rooms, first_tokens = block.ids, block.lengths.astype(np.int64), block.first_tokens
    component_ids = block.component_of_sequences()
    source = source_of_block(source, block)
    if isinstance(loss_mask, TokensFromServer):
        loss_mask = block.loss_mask
    elif loss_mask is not None:
        loss_mask = loss_mask.of_sequences(component_ids)
    if pieces is None:
        return Content(
            ids=ids,
            rooms=rooms,
            lengths=rooms,
            gather_tokens=source.gather_from(ids, rooms),
            gather_mask=None if loss_mask is None else loss_mask.gather_from(ids, rooms),
            redactions=block.redactions,
        )
    source_lengths = source.lengths(ids)
    own_lengths = pieces.own_lengths(ids, rooms, source_lengths, first_tokens, component_ids)
    begins = np.zeros_like(source_lengths) if first_tokens is None else first_tokens
    has_bos = None if separators.bos_token_id is None else begins == 0
    has_eos = None if separators.eos_token_id is None else begins + own_lengths == source_lengths
    lengths = own_lengths.copy()
    for has_separator in (has_bos, has_eos):
        if has_separator is not None:
            lengths += has_separator

    def gather_from(read: TokenSource) -> Gather:
        return read.gather_from(ids, own_lengths, first_tokens=first_tokens, truncate=True)

    return Content(
        ids=ids,
        rooms=rooms,
        lengths=lengths,
        gather_tokens=gather_from(source),
        gather_mask=None if loss_mask is None else gather_from(loss_mask),
        first_tokens=first_tokens,
        source_lengths=source_lengths,
        has_bos=has_bos,
        has_eos=has_eos,
        component_ids=component_ids,
        redactions=block.redactions,
    )


def source_of_block(source: TokenSource, block: BinBlock) -> TokenSource:
    """Returns the source of a block's tokens: the tokens that came with it, or `source` for its components."""
    if not isinstance(source, TokensFromServer):
        return source.of_sequences(block.component_of_sequences())
    if block.tokens is None and not len(block.ids):
        return source
    if block.tokens is None:
        raise TokenSourceError("these bins came without tokens: ask for them with_tokens, or give a token source")
    return block.tokens


def predicted_tokens(
    content: Content, layout: PackLayout, loss_mask: TokenSource | None, scratch: NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """Returns whether each token is to be predicted: bool [T]; None for all. Overwrites `scratch`, int64 [T]."""
    is_predicted = None
    if loss_mask is not None and content.gather_mask is not None:
        for start, end in layout.padding_ranges:
            scratch[start:end] = 0
        content.write_mask(loss_mask, scratch, layout.starts)
        check_loss_mask(scratch, layout, content.ids, loss_mask)
        is_predicted = scratch != 0
    if redacted := content.redacted_indices():
        is_predicted = np.ones(len(scratch), dtype=np.bool_) if is_predicted is None else is_predicted
        for i in redacted:
            is_predicted[layout.starts[i] : layout.starts[i] + content.lengths[i]] = False
    return is_predicted


def write_position_ids(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Writes 0, 1, 2, … within each extent of a layout (a room, or the rest of a row): int64 [T]."""
    np.subtract(_integers(len(position_ids)), layout.extent_starts.repeat(layout.extent_lengths), out=position_ids)


def continue_positions(
    position_ids: NDArray[np.int64], layout: PackLayout, first_tokens: NDArray[np.int64], num_before: int
) -> None:
    """Lets the positions of each piece begin at the number of its first token in the sequence, int64 [n]; in place.

    The `num_before` separators before a sequence, 0 or 1, have its first positions, so later pieces add them too.
    """
    is_later = first_tokens > 0
    ranges = zip(layout.starts[is_later].tolist(), layout.rooms[is_later].tolist(), strict=True)
    for (start, room), first_token in zip(ranges, first_tokens[is_later].tolist(), strict=True):
        position_ids[start : start + room] += first_token + num_before


def follow_prefixes(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Lets the positions of each sequence that sees a prefix continue where the prefix ends: int64 [T], in place."""
    for sequence in np.flatnonzero(layout.prefixes >= 0).tolist():
        start = int(layout.starts[sequence])
        position_ids[start : start + int(layout.rooms[sequence])] += layout.lengths[layout.prefixes[sequence]]


def check_tokens(input_ids: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Checks that every token is in the range of a token id.

    Args:
        input_ids: the tokens of all rows end to end: int64 [T].
        layout: where the sequences lie, to name the one at fault.
        ids: ids of the sequences: int64 [n].
        source: the source of the tokens.

    Raises:
        TokenSourceError: a token is outside [0, 2^31); the text names its sequence.
    """
    if not source.may_be_out_of_range:
        return
    unsigned = input_ids.view(np.uint64)  # negative tokens are the largest, so one comparison finds both
    if unsigned.max(initial=0) > MAX_TOKEN_ID:
        at = int(unsigned.argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: {source.where} holds the token {input_ids[at]} there, but token ids "
            "are in [0, 2^31); write the file again without it"
        )


def check_loss_mask(values: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Checks that a loss mask holds only 0 and 1; it does not if e.g. a token file was given as the mask.

    Args:
        values: the mask of all rows end to end: int64 [T].
        layout: where the sequences lie, to name the one at fault.
        ids: ids of the sequences: int64 [n].
        source: the source of the mask.

    Raises:
        TokenSourceError: a value is neither 0 nor 1; the text names its sequence.
    """
    if values.min(initial=0) < 0 or values.max(initial=0) > 1:
        at = int(((values < 0) | (values > 1)).argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: the loss mask in {source.where} holds {values[at]} there, but it may "
            "hold only 1 (predict this token) and 0 (do not); is it a token file?"
        )


def _integers(count: int) -> NDArray[np.int64]:
    """Returns 0, 1, 2, …, int64 [count], a view of memory that all batches share; do not write to it."""
    return _integers_below(1 << count.bit_length())[:count]


@lru_cache(maxsize=1)
def _integers_below(end: int) -> NDArray[np.int64]:
    return np.arange(end)


def _id_at(index: int, layout: PackLayout, ids: NDArray[np.int64]) -> int:
    """Returns the id of the sequence whose token is at an index among the T tokens."""
    return int(ids[np.searchsorted(layout.starts, index, side="right") - 1])
