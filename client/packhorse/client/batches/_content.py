"""`Content`: the sequences of a batch before they are written, with their separators, loss mask and redactions.

Owns how it is made of bins, and how it is written into arrays. Leaves position ids to `_positions`, labels to `labels`,
checks of what a token source returns to `_token_checks`, reading tokens to `packhorse.tokens`, where sequences lie to
`layout`, and the order of these steps to `batch`.

Legend: n sequences, T tokens of all rows end to end.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches._token_checks import check_loss_mask, check_mask_lengths
from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.row_format import Separators
from packhorse.client.streams.blocks import AS_IT_IS, MASKED, BinBlock
from packhorse.client.streams.sent_tokens import TokensFromServer
from packhorse.tokens import TokenSource, TokenSourceError
from packhorse.tokens.base import Gather
from packhorse.tokens.pieces import PieceRule

_Element = TypeVar("_Element", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """The sequences, or pieces of sequences, that fill the rooms of some rows, and how to write them."""

    ids: NDArray[np.int64]
    """Ids of the sequences: int64 [n]."""
    rooms: NDArray[np.int64]
    """Tokens of the rooms: int64 [n]."""
    lengths: NDArray[np.int64]
    """Tokens of the sequences, separators included: int64 [n]."""
    source: TokenSource
    """The token source of the batch, which errors name; `gather_tokens` reads from it."""
    loss_mask: TokenSource | None
    """The source of the loss mask; None to predict all tokens."""
    gather_tokens: Gather
    """Function that writes the tokens of a range of sequences."""
    gather_mask: Gather | None
    """Function that writes their loss mask; None if every token is predicted: without `loss_mask`, or if its source is
    the server, and these bins came without one."""
    num_before: int = 0
    """Number of sequences that come before these, among all that the two functions know: more than 0 for a `slice`."""
    first_tokens: NDArray[np.int64] | None = None
    """Number of each piece's first token in its sequence: int64 [n]; None if all begin at token 0."""
    source_lengths: NDArray[np.int64] | None = None
    """Tokens of the whole sequences in the source: int64 [n]; None if each comes whole."""
    has_bos: NDArray[np.bool_] | None = None
    """Whether each sequence begins with a separator: bool [n]; None if none does."""
    has_eos: NDArray[np.bool_] | None = None
    """Whether each sequence ends with a separator: bool [n]; None if none does."""
    component_ids: NDArray[np.int32] | None = None
    """Index of each sequence's component in the mixture: int32 [n]; None for a single dataset, or if each comes whole.
    """
    redactions: NDArray[np.int64] | None = None
    """Redaction of each sequence, as in `BinBlock.redactions`: int64 [n]; None if there are none."""

    def slice(self, first: int, last: int) -> "Content":
        """Returns the sequences [first, last), as views."""
        return Content(
            ids=self.ids[first:last],
            rooms=self.rooms[first:last],
            lengths=self.lengths[first:last],
            source=self.source,
            loss_mask=self.loss_mask,
            gather_tokens=self.gather_tokens,
            gather_mask=self.gather_mask,
            num_before=self.num_before + first,
            first_tokens=_slice(self.first_tokens, first, last),
            source_lengths=_slice(self.source_lengths, first, last),
            has_bos=_slice(self.has_bos, first, last),
            has_eos=_slice(self.has_eos, first, last),
            component_ids=_slice(self.component_ids, first, last),
            redactions=_slice(self.redactions, first, last),
        )

    def write_tokens(self, out: NDArray[np.int64], starts: NDArray[np.int64], separators: Separators) -> None:
        """Writes the tokens and separators of each sequence, from its start on.

        Args:
            out: receives them: int64 [T].
            starts: index in `out` of each sequence's first token: int64 [n].
            separators: the tokens before and after a sequence.
        """
        self._write(self.gather_tokens, out, starts)
        if self.redactions is not None:
            for i in self.redacted_indices():
                if (token := int(self.redactions[i])) != MASKED:
                    out[starts[i] : starts[i] + self.lengths[i]] = token
        if self.has_bos is not None and separators.bos_token_id is not None:
            out[starts[self.has_bos]] = separators.bos_token_id
        if self.has_eos is not None and separators.eos_token_id is not None:
            out[self._eos_indices(starts)] = separators.eos_token_id

    def write_mask(self, out: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        """Writes the loss mask of each sequence; an end separator is predicted if the token before it is.

        Args:
            out: receives 1 for a token to predict and 0 for others: int64 [T].
            starts: index in `out` of each sequence's first token: int64 [n].

        Raises:
            TokenSourceError: the mask has another length than the tokens.
        """
        assert self.loss_mask is not None
        assert self.gather_mask is not None
        server_has_compared = isinstance(self.loss_mask, TokensFromServer)
        if self.source_lengths is not None and not server_has_compared:
            check_mask_lengths(self.loss_mask, self.component_ids, self.ids, self.source_lengths)
        self._write(self.gather_mask, out, starts)
        if self.has_bos is not None:
            out[starts[self.has_bos]] = 0  # a separator before a sequence is never predicted
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
        """Writes each sequence's own tokens, or their mask, from its start on, or from behind its first separator."""
        own_starts = starts if self.has_bos is None else starts + self.has_bos
        gather(self.num_before, self.num_before + len(self.ids), out, own_starts)

    def _eos_indices(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the index among the T tokens of each separator that ends a sequence."""
        return (starts + self.lengths - 1)[self.has_eos]


def _slice(values: NDArray[_Element] | None, first: int, last: int) -> NDArray[_Element] | None:
    return None if values is None else values[first:last]


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
    if pieces is not None:
        return _content_of_pieces(block, source, loss_mask, separators, pieces)
    ids, rooms = block.ids, block.lengths.astype(np.int64)
    block_source, block_mask = source_of_block(source, block), _mask_of_block(loss_mask, block)
    return Content(
        ids=ids,
        rooms=rooms,
        lengths=rooms,
        source=source,
        loss_mask=loss_mask,
        gather_tokens=block_source.gather_from(ids, rooms),
        gather_mask=None if block_mask is None else block_mask.gather_from(ids, rooms),
        redactions=block.redactions,
    )


def _content_of_pieces(
    block: BinBlock, source: TokenSource, loss_mask: TokenSource | None, separators: Separators, pieces: PieceRule
) -> Content:
    """Returns the content of a block whose rooms may hold only a part of a sequence, separators, or padding."""
    ids, rooms, first_tokens = block.ids, block.lengths.astype(np.int64), block.first_tokens
    component_ids = block.component_of_sequences()
    block_source, block_mask = source_of_block(source, block), _mask_of_block(loss_mask, block)
    source_lengths = block_source.lengths(ids)
    own_lengths = pieces.own_lengths(ids, rooms, source_lengths, first_tokens, component_ids)  # without separators
    # Only a sequence's true beginning gets the separator before it, and only its true end the one after it.
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
        source=source,
        loss_mask=loss_mask,
        gather_tokens=gather_from(block_source),
        gather_mask=None if block_mask is None else gather_from(block_mask),
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
        return source  # nothing will be read
    if block.tokens is None:
        raise TokenSourceError("these bins came without tokens: ask for them with_tokens, or give a token source")
    return block.tokens


def _mask_of_block(loss_mask: TokenSource | None, block: BinBlock) -> TokenSource | None:
    """Returns the source of a block's loss mask: the mask that came with it, or `loss_mask` for its components."""
    if isinstance(loss_mask, TokensFromServer):
        return block.loss_mask
    return None if loss_mask is None else loss_mask.of_sequences(block.component_of_sequences())


def predicted_tokens(content: Content, layout: PackLayout, *, scratch: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Returns whether each token is to be predicted: bool [T]; None for all.

    Args:
        content: the sequences, with their loss mask and redactions.
        layout: where they lie.
        scratch: memory for the loss mask, which is overwritten: int64 [T].
    """
    is_predicted = None
    if content.loss_mask is not None and content.gather_mask is not None:  # the second implies the first
        for start, end in layout.padding_ranges:
            scratch[start:end] = 0
        content.write_mask(scratch, layout.starts)
        check_loss_mask(scratch, layout, content.ids, content.loss_mask)
        is_predicted = scratch != 0
    if redacted := content.redacted_indices():
        is_predicted = np.ones(len(scratch), dtype=np.bool_) if is_predicted is None else is_predicted
        for i in redacted:
            is_predicted[layout.starts[i] : layout.starts[i] + content.lengths[i]] = False
    return is_predicted
