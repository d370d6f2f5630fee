"""Assembly of bins into the tensors that a training step takes.

Owns the keys of a packed batch and how they are filled; leaves the tokens themselves to `sources`, where they lie to
`layout`, which of them are predicted to `labels`, memory to `buffers`, and attention masks to `masks`.
"""

from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches._rooms import own_lengths
from packhorse.client.batches._targets import write_causal_labels
from packhorse.client.batches._values import check_loss_mask, check_tokens
from packhorse.client.batches.buffers import BatchBuffers
from packhorse.client.batches.layout import OverfullRowError, PackLayout
from packhorse.client.batches.separators import Separators, check_token_id
from packhorse.client.seeing._dict import SeenDict
from packhorse.client.service.blocks import BinBlock
from packhorse.client.sources import TokenSource, TokenSourceError
from packhorse.topology import RoomRule


class PackedBatch(TypedDict):
    """One packed batch. Legend: B rows, L tokens in a row, n sequences.

    A row is a bin, and L is max_seq_len; flattened, B is 1 and L the number of all tokens.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> batch["input_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[0, 1, 2, 3, 4, 0, 1, 2]], [0, 5, 8])
    """

    input_ids: torch.Tensor
    """Tokens, each bin's sequences from the left, then padding: int64 [B, L]. With the plan's `align` or `extra_tokens`
    a sequence's room ends with padding of its own."""
    labels: torch.Tensor
    """Targets, -100 on padding, at the sequences' boundaries and where the loss mask is 0 (see `labels`):
    int64 [B, L]."""
    sequence_ids: torch.Tensor
    """0, 1, 2, … for the sequences of each row, and further numbers for its padding: int32 [B, L]."""
    position_ids: torch.Tensor
    """0, 1, 2, … within each room of a sequence, and within the padding of each row: int64 [B, L]. With
    `continue_positions` a piece's begin at its first token's index in the whole sequence."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    cu_seqlens: torch.Tensor
    """Offsets of the sequences in the tokens of all rows end to end, padding left out: int32 [n + 1]; on the CPU as
    assembled, on the device behind a loader that moves batches there."""
    max_seqlen: int
    """The longest sequence of the batch, in tokens; 0 without any. A host integer, so that no kernel waits for it."""
    ids: torch.Tensor
    """Ids of the sequences, row after row: int64 [n]."""
    layout: PackLayout
    """Where each sequence lies, in host memory: what masks are made from."""
    cursor: NotRequired[Any]
    """Where training stands after this batch; added by the dataset."""


@dataclass(frozen=True, slots=True)
class BatchAssembler:
    """Turns blocks of bins into batches.

    Example:
        >>> from packhorse.client import IndexableSource
        >>> block = BinBlock(  # one bin of sequences 0 and 1
        ...     ids=np.array([0, 1]), lengths=np.array([2, 1]), bin_ends=np.array([2]), positions=np.array([0])
        ... )
        >>> batch = BatchAssembler(max_seq_len=4).assemble(block, IndexableSource([[7, 8], [9]]))
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[7, 8, 9, 0]], [[-100, 8, -100, -100]])
    """

    max_seq_len: int
    """Tokens in a row: the capacity that the dataset was planned with."""
    _: KW_ONLY
    pad_token_id: int = 0
    """Token that fills a bin's free end; attention and loss never look at it."""
    shift_labels: bool = False
    """False for models that shift inside (Hugging Face); True for losses that compare the same index."""
    flatten: bool = False
    """False: one row for each bin. True: the sequences of all bins end to end in one row, without padding; a batch
    without any sequence is one token of padding."""
    separators: Separators = field(default_factory=Separators)
    """Special tokens put around each sequence, for which the plan kept `extra_tokens`."""
    truncate: bool = False
    """Whether sequences that do not fit a bin were cut to its length: truncated at their end, or split."""
    align: int = 1
    """What the dataset was planned with: a sequence's room is a multiple of so many tokens."""
    extra_tokens: int = 0
    """What the dataset was planned with: tokens kept free in each room."""
    continue_positions: bool = False
    """Whether position ids of a piece go on where the piece before it ended; otherwise they restart at 0."""
    pin_memory: bool = False
    """Whether tensors lie in page-locked memory, which needs CUDA in this process; not for dataloader workers."""

    def __post_init__(self) -> None:
        check_token_id("pad_token_id", self.pad_token_id)
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {self.max_seq_len}")
        if self.align < 1 or self.extra_tokens < 0:
            raise ValueError(
                f"align must be at least 1 and extra_tokens at least 0, got {self.align} and {self.extra_tokens}"
            )
        if self.separators.num_tokens > self.extra_tokens:
            raise ValueError(
                f"the separators add up to {self.separators.num_tokens} tokens to a sequence, but the dataset was "
                f"planned with extra_tokens {self.extra_tokens}; prepare it with "
                f"--extra-tokens {self.separators.num_tokens}"
            )

    def assemble(
        self,
        block: BinBlock,
        source: TokenSource,
        *,
        loss_mask: TokenSource | None = None,
        buffers: BatchBuffers | None = None,
    ) -> PackedBatch:
        """Assembles the bins of one block into one batch, in their order.

        Padding has a label of its own, and so neither causal nor bidirectional attention mixes it with a sequence,
        and positions of its own, and so a model that infers boundaries from positions sees one run, not one document
        for each padding token.

        Args:
            block: the bins; those without sequences become rows of padding.
            source: has every id of the block.
            loss_mask: has the same ids with the same lengths: 1 for tokens to predict, 0 for others. None for all.
            buffers: memory that the tensors are written into; whoever gives it knows that no earlier batch there is
                needed any more. None for memory of their own.

        Returns:
            Tensors on the CPU; whatever is written to them, the layout, the block and the source stay as they are.

        Raises:
            ValueError: a bin holds more than `max_seq_len` tokens, or `buffers` are too small.
            TokenSourceError: `source` or `loss_mask` and the plan disagree, a token is negative, or a mask holds
                anything but 0 and 1.
        """
        content = self._content(block, source)
        layout = self._layout(block, content)
        num_tokens = layout.num_rows * layout.row_tokens
        memory = buffers or BatchBuffers(num_tokens, pin_memory=self.pin_memory)
        tensors, arrays = memory.tensors(layout.num_rows, layout.row_tokens)
        input_ids, labels, position_ids, attention_mask, sequence_ids = arrays

        run_lengths = layout.run_lengths
        sequence_ids[:] = layout.sequence_ids().ravel()
        np.subtract(_integers(num_tokens), layout.run_starts.repeat(run_lengths), out=position_ids)
        if self.continue_positions and block.first_tokens is not None:
            num_before = int(self.separators.bos_token_id is not None)
            _continue(position_ids, layout, block.first_tokens, num_before)

        content.write(source, input_ids, layout.starts, self.separators)
        is_predicted = None
        if loss_mask is not None:
            for start, end in layout.padding_spans:
                labels[start:end] = 0
            content.write_mask(loss_mask, labels, layout.starts)
            check_loss_mask(labels, layout, block.ids, loss_mask)
            is_predicted = labels != 0
        attention_mask.fill(1)
        for start, end in layout.padding_spans:
            input_ids[start:end] = self.pad_token_id
            attention_mask[start:end] = 0
        check_tokens(input_ids, layout, block.ids, source)
        write_causal_labels(labels, input_ids, layout, is_predicted=is_predicted, shift=self.shift_labels)

        batch = PackedBatch(
            input_ids=tensors.input_ids,
            labels=tensors.labels,
            sequence_ids=tensors.sequence_ids,
            position_ids=tensors.position_ids,
            attention_mask=tensors.attention_mask,
            cu_seqlens=torch.tensor(layout.cu_seqlens),  # a copy: the layout's own stay what they are
            max_seqlen=layout.max_seqlen,
            ids=torch.tensor(block.ids),
            layout=layout,
        )
        return cast(PackedBatch, SeenDict(batch))

    def _content(self, block: BinBlock, source: TokenSource) -> "_Content":
        """Finds out what goes into each room."""
        planned = block.lengths.astype(np.int64)
        if self.align == 1 and self.extra_tokens == 0 and not self.truncate and block.first_tokens is None:
            return _Content(block=block, rooms=planned, own_lengths=planned, lengths=planned)
        rule = RoomRule(self.max_seq_len, self.align, self.extra_tokens)
        held = source.lengths(block.ids)
        own = own_lengths(rule, block.ids, planned, held, block.first_tokens, truncate=self.truncate)
        firsts = np.zeros_like(held) if block.first_tokens is None else block.first_tokens
        has_bos = None if self.separators.bos_token_id is None else firsts == 0
        has_eos = None if self.separators.eos_token_id is None else firsts + own == held
        lengths = own.copy()
        for added in (has_bos, has_eos):
            if added is not None:
                lengths += added
        return _Content(
            block=block,
            rooms=planned,
            own_lengths=own,
            lengths=lengths,
            held=held,
            has_bos=has_bos,
            has_eos=has_eos,
        )

    def _layout(self, block: BinBlock, content: "_Content") -> PackLayout:
        try:
            layout = PackLayout.of_rows(content.rooms, block.bin_ends, self.max_seq_len, lengths=content.lengths)
        except OverfullRowError as error:
            raise ValueError(
                f"the bin at position {block.positions[error.row]} (row {error.row} of the block) holds {error.filled} "
                f"tokens, more than max_seq_len {self.max_seq_len}; use the max_seq_len that the dataset was prepared "
                "with"
            ) from None
        return layout.flattened() if self.flatten else layout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Content:
    """What goes into the rooms of a block's n sequences."""

    block: BinBlock
    rooms: NDArray[np.int64]
    """Tokens of the rooms: int64 [n]."""
    own_lengths: NDArray[np.int64]
    """Tokens that come from the source: int64 [n]."""
    lengths: NDArray[np.int64]
    """The same with separators: int64 [n]."""
    held: NDArray[np.int64] | None = None
    """Tokens of the whole sequences: int64 [n]; None where that is what comes from the source."""
    has_bos: NDArray[np.bool_] | None = None
    """Which begin with a separator: bool [n]; None for none."""
    has_eos: NDArray[np.bool_] | None = None
    """Which end with a separator: bool [n]; None for none."""

    def write(
        self, source: TokenSource, out: NDArray[np.int64], begins: NDArray[np.int64], separators: Separators
    ) -> None:
        """Writes tokens and separators at each start."""
        self._gather(source, out, begins)
        if self.has_bos is not None and separators.bos_token_id is not None:
            out[begins[self.has_bos]] = separators.bos_token_id
        if self.has_eos is not None and separators.eos_token_id is not None:
            out[self._eos_indices(begins)] = separators.eos_token_id

    def write_mask(self, loss_mask: TokenSource, out: NDArray[np.int64], begins: NDArray[np.int64]) -> None:
        """Writes the loss mask likewise: a separator in front is not predicted, one behind with the token before it."""
        if self.held is not None:
            masked = loss_mask.lengths(self.block.ids)
            if (masked != self.held).any():
                i = int((masked != self.held).argmax())
                raise TokenSourceError(
                    f"sequence {self.block.ids[i]}: the loss mask in {loss_mask.where} holds {masked[i]} values for "
                    f"its {self.held[i]} tokens; use the mask that was written with these tokens"
                )
        self._gather(loss_mask, out, begins)
        if self.has_bos is not None:
            out[begins[self.has_bos]] = 0
        if self.has_eos is not None:
            last = self._eos_indices(begins)
            out[last] = out[last - 1]

    def _gather(self, source: TokenSource, out: NDArray[np.int64], begins: NDArray[np.int64]) -> None:
        out_starts = begins if self.has_bos is None else begins + self.has_bos
        source.gather(
            self.block.ids,
            self.own_lengths,
            out,
            out_starts,
            first_tokens=self.block.first_tokens,
            truncate=self.held is not None,
        )

    def _eos_indices(self, begins: NDArray[np.int64]) -> NDArray[np.int64]:
        return (begins + self.lengths - 1)[self.has_eos]


@lru_cache(maxsize=1)
def _integers(count: int) -> NDArray[np.int64]:
    """0, 1, 2, …: int64 [count]; the same for every batch of one shape, and not to be written to."""
    return np.arange(count)


def _continue(
    position_ids: NDArray[np.int64], layout: PackLayout, first_tokens: NDArray[np.int64], num_before: int
) -> None:
    """Moves positions of pieces on by where they begin in their sequences: int64 [n].

    A separator in front of the whole sequence has position 0, so `num_before` more for every piece but the first.
    """
    is_later = first_tokens > 0
    spans = zip(layout.starts[is_later].tolist(), layout.rooms[is_later].tolist(), strict=True)
    for (start, room), first_token in zip(spans, first_tokens[is_later].tolist(), strict=True):
        position_ids[start : start + room] += first_token + num_before
