"""Assembly of bins into the tensors that a training step takes.

Owns the layout of a packed batch; leaves the tokens themselves to `tokens`, which of them are predicted to `labels`,
and attention masks to `masks`.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client._places import PlaceRule
from packhorse.client.blocks import BinBlock
from packhorse.client.labels import causal_labels
from packhorse.client.tokens import TokenSource


class PackedBatch(TypedDict):
    """One packed batch. Legend: B bins, L = max_seq_len, n sequences."""

    input_ids: torch.Tensor
    """Tokens, each bin's sequences from the left, then padding: int64 [B, L]. With the plan's `align` or `extra_tokens`
    a sequence's place ends with padding of its own."""
    labels: torch.Tensor
    """Targets, -100 on padding and at the sequences' boundaries (see `labels.causal_labels`): int64 [B, L]."""
    sequence_ids: torch.Tensor
    """0, 1, 2, … within each bin, a sequence's own padding included; the bin's has the next number: int32 [B, L]."""
    position_ids: torch.Tensor
    """0, 1, 2, … within each place of a sequence, and within the padding of each bin: int64 [B, L]. With
    `continue_positions` a piece's begin at its first token's place in the whole sequence."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    cu_seqlens: torch.Tensor
    """Offsets of the sequences in the tokens of all bins end to end, padding left out: int32 [n + 1], on the CPU."""
    max_seqlen: int
    """The longest sequence of the batch, in tokens; 0 without any. A host integer, so that no kernel waits for it."""
    cursor: NotRequired[Any]
    """Where training stands after this batch; added by the dataset."""


@dataclass(frozen=True, slots=True)
class BatchAssembler:
    """Turns blocks of bins into batches; one row for each bin."""

    max_seq_len: int
    """Tokens in a row: the capacity that the dataset was planned with."""
    _: KW_ONLY
    pad_token_id: int = 0
    """Token that fills a bin's free end; attention and loss never look at it."""
    shift_labels: bool = False
    """False for models that shift inside (Hugging Face); True for losses that compare the same index."""
    truncate: bool = False
    """Whether sequences may be longer in the source than planned: over-length ones were truncated or split."""
    align: int = 1
    """What the dataset was planned with: a sequence's place is a multiple of so many tokens."""
    extra_tokens: int = 0
    """What the dataset was planned with: tokens kept free in each place."""
    continue_positions: bool = False
    """Whether position ids of a piece go on where the piece before it ended; otherwise they restart at 0."""

    def __post_init__(self) -> None:
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {self.max_seq_len}")
        if self.align < 1 or self.extra_tokens < 0:
            raise ValueError(
                f"align must be at least 1 and extra_tokens at least 0, got {self.align} and {self.extra_tokens}"
            )

    def assemble(self, block: BinBlock, source: TokenSource) -> PackedBatch:
        """Assembles the bins of one block into one batch, in their order.

        Legend: B bins, L = max_seq_len, S sequences, R = S + B runs: each bin's sequences, then its padding.

        Padding has a label of its own, and so neither causal nor bidirectional attention mixes it with a sequence,
        and positions of its own, and so a model that infers boundaries from positions sees one run, not one document
        for each padding token.

        Args:
            block: the bins; those without sequences become rows of padding.
            source: has every id of the block.

        Returns:
            Tensors on the CPU with memory of their own.

        Raises:
            ValueError: a bin holds more than `max_seq_len` tokens.
            TokenSourceError: `source` and the plan disagree.
        """
        num_bins, row_tokens = len(block), self.max_seq_len
        lengths = block.lengths.astype(np.int64)
        first_sequence = block.bin_starts()
        num_sequences = block.bin_ends - first_sequence
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        first_offset = offsets[first_sequence]
        bin_tokens = offsets[block.bin_ends] - first_offset
        if (bin_tokens > row_tokens).any():
            self._refuse_overfull(block, bin_tokens)

        bins = np.arange(num_bins)
        bin_of_sequence = np.repeat(bins, num_sequences)
        starts = offsets[:-1] + (bins * row_tokens - first_offset)[bin_of_sequence]
        input_ids = np.full(num_bins * row_tokens, self.pad_token_id, dtype=np.int64)
        has_free_places = self.align > 1 or self.extra_tokens > 0
        own_lengths = self._own_lengths(block, lengths, source) if has_free_places else lengths
        source.gather(
            block.ids,
            own_lengths,
            input_ids,
            starts,
            starts=block.starts,
            truncate=self.truncate or has_free_places,
        )

        run_of_sequence = np.arange(len(lengths)) + bin_of_sequence
        run_of_padding = block.bin_ends + bins
        run_lengths = np.empty(len(lengths) + num_bins, dtype=np.int64)
        run_lengths[run_of_sequence] = lengths
        run_lengths[run_of_padding] = row_tokens - bin_tokens
        run_labels = np.empty(len(run_lengths), dtype=np.int32)
        run_labels[run_of_sequence] = np.arange(len(lengths)) - first_sequence[bin_of_sequence]
        run_labels[run_of_padding] = num_sequences
        run_starts = np.cumsum(run_lengths) - run_lengths

        position_ids = np.arange(num_bins * row_tokens)
        position_ids -= np.repeat(run_starts, run_lengths)
        if has_free_places:
            run_tokens = np.zeros_like(run_lengths)
            run_tokens[run_of_sequence] = own_lengths
            is_token = (position_ids < np.repeat(run_tokens, run_lengths)).reshape(num_bins, row_tokens)
        else:
            is_token = np.arange(row_tokens) < bin_tokens[:, None]
        labels = causal_labels(input_ids, starts, starts + own_lengths, ~is_token.ravel(), shift=self.shift_labels)
        if self.continue_positions and block.starts is not None:
            run_first_tokens = np.zeros_like(run_lengths)
            run_first_tokens[run_of_sequence] = block.starts
            position_ids += np.repeat(run_first_tokens, run_lengths)
        own_offsets = np.concatenate(([0], np.cumsum(own_lengths))) if has_free_places else offsets

        shape = (num_bins, row_tokens)
        return PackedBatch(
            input_ids=torch.from_numpy(input_ids.reshape(shape)),
            labels=torch.from_numpy(labels.reshape(shape)),
            sequence_ids=torch.from_numpy(np.repeat(run_labels, run_lengths).reshape(shape)),
            position_ids=torch.from_numpy(position_ids.reshape(shape)),
            attention_mask=torch.from_numpy(is_token.astype(np.int64)),
            cu_seqlens=torch.from_numpy(own_offsets.astype(np.int32)),
            max_seqlen=int(own_lengths.max(initial=0)),
        )

    def _own_lengths(self, block: BinBlock, lengths: NDArray[np.int64], source: TokenSource) -> NDArray[np.int64]:
        rule = PlaceRule(
            max_seq_len=self.max_seq_len, align=self.align, extra_tokens=self.extra_tokens, truncate=self.truncate
        )
        return rule.own_lengths(block.ids, lengths, source.lengths(block.ids), block.starts)

    def _refuse_overfull(self, block: BinBlock, bin_tokens: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        row = int((bin_tokens > self.max_seq_len).argmax())
        raise ValueError(
            f"the bin at position {block.positions[row]} (row {row} of the block) holds {bin_tokens[row]} tokens, more "
            f"than max_seq_len {self.max_seq_len}; use the max_seq_len that the dataset was prepared with"
        )
