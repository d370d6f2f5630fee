"""Assembly of bins into the tensors of a training step: `BatchAssembler`.

Owns the order of the steps from bins to a batch. Leaves a batch's keys to `packed_batch` and its memory to `buffers`,
where sequences lie to `layout`, writing tokens to `_content`, position ids to `_positions` and labels to `labels`,
images to `_images`, dividing a mixture's joined bins to `joined_rows`, and attention masks to `masks`.

Legend: N bins, B rows, n sequences, T tokens of all rows end to end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, astuple, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches._content import Content, content_of, predicted_tokens, source_of_block
from packhorse.client.batches._images import Images, read_images
from packhorse.client.batches._positions import write_position_ids
from packhorse.client.batches._token_checks import check_tokens
from packhorse.client.batches.buffers import BatchArrays, BatchBuffers, BatchTensors
from packhorse.client.batches.labels import IGNORE_INDEX, write_causal_labels
from packhorse.client.batches.layout import OverfullRowError, PackLayout
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.row_format import RowFormat
from packhorse.client.streams.blocks import BinBlock
from packhorse.shelf import from_shelf
from packhorse.tokens import TokenSource
from packhorse.tokens.pieces import PieceRule
from packhorse.topology import LEAST_EXTRA_TOKENS, ContextRule, RoomRule

_BATCHES_AT_ONCE = 16
"""Batches whose layouts are computed together: enough to make a batch's share of the work negligible, and few enough
that the first batch need not wait long."""


@dataclass(frozen=True, slots=True)
class MixedComponent:
    """A component of the mixture that a batch's sequences come from."""

    name: str
    """The component's name in the mixture."""
    longest: int | None = None
    """Tokens to which the component's longer sequences were truncated or split; None if none was cut."""


@dataclass(frozen=True, slots=True)
class BatchAssembler(RowFormat):
    """Turns blocks of bins into batches.

    Example:
        >>> from packhorse.client.sources import IndexableSource
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
    truncate: bool = False
    """Whether sequences that do not fit a bin were truncated at their end or split."""
    align: int = 1
    """The dataset's `align`: a sequence's room is a multiple of this many tokens."""
    extra_tokens: int = 0
    """The dataset's `extra_tokens`: tokens kept free in each room. If they are one less than separators add, the last
    token of each sequence is left out of `input_ids`: it is only in `labels`, which must be shifted.
    """
    components: tuple[MixedComponent, ...] = ()
    """The components of a mixture; `truncate` is then ignored."""
    context_rule: ContextRule | None = None
    """The dataset's rule by which several ranks share a bin; None if each bin is one rank's."""
    shares_prefixes: bool = False
    """Whether the dataset was planned with shared prefixes: a sequence's room has only its tokens from `first_tokens`
    on, because another sequence of its group has the tokens before. Whole sequences are assembled, and then folded
    into a tree, here or by a preset.
    """
    pin_memory: bool = False
    """Whether tensors are in page-locked memory. This needs CUDA in this process; do not set it in dataloader workers.
    """

    def __post_init__(self) -> None:
        """Checks every field, also against the dataset's plan: `align` to `shares_prefixes`."""
        RowFormat.__post_init__(self)
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {self.max_seq_len}")
        if self.shared_prefix == "tree" and self.context_rule is not None:
            raise ValueError(
                "shared_prefix='tree' goes without tokens_per_rank: ranks that share a bin would cut its branches from "
                "their prefix; leave it out, or train on a dataset prepared without tokens_per_rank"
            )
        if self.align < 1 or self.extra_tokens < LEAST_EXTRA_TOKENS:
            raise ValueError(
                f"align must be at least 1 and extra_tokens at least {LEAST_EXTRA_TOKENS}, got {self.align} and "
                f"{self.extra_tokens}"
            )
        self._check_separators()
        if self.media is not None and bool(self.components) != isinstance(self.media.load, Mapping):
            raise ValueError(
                "ids of a mixture belong to components: give load of media by component, {NAME: load}"
                if self.components
                else "load of media is given by component, but the dataset is not a mixture; give the function itself"
            )

    @property
    def _pieces(self) -> PieceRule:
        """The rule by which the plan cut sequences: how many tokens of its own each has in its room."""
        rooms = RoomRule(self.max_seq_len, self.align, self.extra_tokens)
        if self.components:
            return PieceRule(rooms, longest_of_components=tuple(each.longest for each in self.components))
        return PieceRule(rooms, rooms.longest if self.truncate else None)

    @property
    def _leaves_out_last(self) -> bool:
        """Whether the last token of each sequence is only a label, and not an input."""
        return self.separators.leaves_out_last(self.extra_tokens)

    @property
    def _folds(self) -> bool:
        """Whether a batch is rows of whole sequences first, which are then folded into trees, here or by a preset."""
        return self.shared_prefix == "tree" or self.shares_prefixes

    def _check_separators(self) -> None:
        """Refuses separators for which the plan keeps no room, and options that need the token that is left out."""
        if self._leaves_out_last and self.shift_labels:
            self._check_without_last()  # the last token is in the shifted labels, so no room is missing
        elif self.separators.num_tokens > self.extra_tokens:
            shift = "shift labels (shift_labels=True, or a preset that shifts)"
            if not self.separators.num_tokens:
                raise ValueError(
                    "the dataset was planned with extra_tokens -1, which leaves the last token of each sequence to "
                    f"shifted labels; {shift}, or prepare it with extra_tokens=0"
                )
            raise ValueError(
                f"the separators add up to {self.separators.num_tokens} tokens to a sequence, but the dataset was "
                f"planned with extra_tokens {self.extra_tokens}; prepare it with "
                f"extra_tokens={self.separators.num_tokens}" + (f", or {shift}" if self._leaves_out_last else "")
            )

    def _check_without_last(self) -> None:
        """Refuses options that need each sequence's last token as an input."""
        for name in ("shared_prefix", "media"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} goes without extra_tokens={self.extra_tokens}, which leaves out the last token of each "
                    f"sequence; prepare the dataset with extra_tokens={self.separators.num_tokens}"
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

        Padding has its own `sequence_ids`, so no attention mixes it with a sequence, and its own positions from 0 on,
        so a model that infers boundaries from positions sees one document and not one for each padding token.

        Args:
            block: the bins; those without sequences become rows of padding.
            source: token source that has every id of the block.
            loss_mask: source with the same ids and lengths: 1 for tokens to predict, 0 for others. None to predict all.
            buffers: memory for the tensors; the batch that was assembled into it before is overwritten. None for new
                memory, which trees always have.

        Returns:
            Tensors on the CPU, which share no memory with the layout, the block or the source.

        Raises:
            ValueError: a bin holds more than `max_seq_len` tokens, or `buffers` are too small.
            TokenSourceError: `source` or `loss_mask` does not fit the plan, a token is negative, or a mask holds
                anything but 0 and 1.
            MediaError: a sequence's images cannot be loaded, or do not fit its placeholders.
        """
        if self._folds:
            assembler, whole_block = self._before_folding(block)
            return self._folded(assembler.assemble(whole_block, source, loss_mask=loss_mask), block)
        block = self._with_component_ids(block)
        content = self._content(block, source, loss_mask)
        return self._fill(content, self._layout(block, content), block.component_ids, buffers)

    def assemble_steps(
        self, block: BinBlock, source: TokenSource, *, batch_size: int, loss_mask: TokenSource | None = None
    ) -> Iterator[PackedBatch]:
        """Yields the bins of one block as batches of `batch_size` bins; the last one has the bins that are left.

        The batches are those of `assemble`, in less time: layouts are computed for many batches at once. Tokens are
        read one batch at a time, so no batch waits for later ones.

        Example:
            >>> from packhorse.client.sources import IndexableSource
            >>> ids, lengths = np.array([0, 1]), np.array([2, 1])  # two bins of one sequence each
            >>> block = BinBlock(ids=ids, lengths=lengths, bin_ends=np.array([1, 2]), positions=np.array([0, 1]))
            >>> assembler, source = BatchAssembler(max_seq_len=2), IndexableSource([[7, 8], [9]])
            >>> [batch["input_ids"].tolist() for batch in assembler.assemble_steps(block, source, batch_size=1)]
            [[[7, 8]], [[9, 0]]]

        Args:
            block: the bins of some steps.
            source: token source that has every id of the block.
            batch_size: bins in a batch, at least 1.
            loss_mask: as for `assemble`.

        Raises:
            ValueError: as for `assemble`; raised up to 15 batches before the bin that holds too much.
            TokenSourceError: as for `assemble`; raised up to 15 batches before a length that does not fit its room.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if self._folds:
            batches_at_once = 1  # each batch's longest row decides how long the rows are before they are folded
        else:
            block = self._with_component_ids(block)
            # If the source must read tokens to know a sequence's length, lengths are requested for a batch at a time.
            is_known = self._is_plain(block) or source_of_block(source, block).knows_lengths
            batches_at_once = _BATCHES_AT_ONCE if is_known else 1
        bins_at_once = batch_size * batches_at_once
        for first in range(0, len(block), bins_at_once):
            bins = block.slice(first, min(first + bins_at_once, len(block)))
            if len(bins) <= batch_size:
                yield self.assemble(bins, source, loss_mask=loss_mask)
            else:
                yield from self._assemble_together(bins, source, batch_size, loss_mask)

    def _assemble_together(
        self, block: BinBlock, source: TokenSource, batch_size: int, loss_mask: TokenSource | None
    ) -> Iterator[PackedBatch]:
        """Yields the bins of several batches, whose layouts are computed together."""
        content = self._content(block, source, loss_mask)
        sequence = row = 0  # the first of the next batch
        for layout in self._layout(block, content).split(batch_size):
            end, end_row = sequence + layout.num_sequences, row + layout.num_rows
            component_ids = None if block.component_ids is None else block.component_ids[row:end_row]
            yield self._fill(content.slice(sequence, end), layout, component_ids)
            sequence, row = end, end_row

    def _before_folding(self, block: BinBlock) -> "tuple[BatchAssembler, BinBlock]":
        """Returns an assembler of plain rows and a block of whole sequences, whose batch is then folded to trees."""
        # A planned room has only the tokens from `first_tokens` on; a whole sequence has those before them, too.
        if block.first_tokens is not None and self.shares_prefixes:
            lengths = (block.lengths + block.first_tokens).astype(np.int32)
            block = replace(block, lengths=lengths, first_tokens=None)
        if self.shared_prefix == "tree":  # `_folded` applies redactions, since they must leave what sequences share
            block = replace(block, redactions=None)
        # Rows of whole sequences may exceed max_seq_len. Bins of 5 + 3 and 4 tokens have sums [0, 5, 8, 12] and end at
        # [2, 3]: there the sums are [8, 12], and the bins hold [8, 4].
        sums = np.concatenate(([0], np.cumsum(block.lengths)))
        longest_row = int(np.diff(sums[block.bin_ends], prepend=0).max(initial=0))
        assembler = replace(
            self,
            max_seq_len=max(longest_row, self.max_seq_len),
            shared_prefix=False,
            shares_prefixes=False,
            flatten=False,  # flattening and pinning come after folding
            shift_labels=True,  # labels of a tree are for the next token
            pin_memory=False,
        )
        return assembler, block

    def _folded(self, batch: PackedBatch, block: BinBlock) -> PackedBatch:
        """Folds rows of whole sequences to trees, if `shared_prefix` is "tree"; otherwise a preset does so later.

        Args:
            batch: the rows.
            block: the bins as they were sent, with their redactions.
        """
        if self.shared_prefix != "tree":
            return batch
        folded: PackedBatch = from_shelf("fold_batch")(
            batch,
            self.max_seq_len,
            pad_token_id=self.pad_token_id,
            flatten=bool(self.flatten),
            redactions=block.redactions,
        )
        return folded.pin_memory() if self.pin_memory else folded

    def _fill(
        self,
        content: Content,
        layout: PackLayout,
        component_ids: NDArray[np.int32] | None,
        buffers: BatchBuffers | None = None,
    ) -> PackedBatch:
        """Returns one batch, with tensors that are written here.

        Args:
            content: the batch's sequences.
            layout: where they lie in rows; flattened here if need be.
            component_ids: index of every row's component: int32 [B]; None without a mixture.
            buffers: memory for the tensors; None for new memory.
        """
        of_sequences = None if component_ids is None else component_ids.repeat(np.diff(layout.row_ends, prepend=0))
        if self.flatten:
            layout = layout.flattened(self.total_multiple_of)
        memory = buffers or BatchBuffers(layout.num_rows * layout.row_tokens, pin_memory=self.pin_memory)
        tensors, arrays = memory.tensors(layout.num_rows, layout.row_tokens)
        images = self._write(arrays, layout, content, of_sequences)
        batch = self._batch_of(tensors, layout, content)
        if component_ids is not None and of_sequences is not None:
            batch["component_ids"] = torch.from_numpy(of_sequences)
            batch["bin_component_ids"] = torch.from_numpy(component_ids.copy())
            batch["component_names"] = tuple(each.name for each in self.components)
        if images is not None:
            batch.update(images.batch_keys(tensors.position_ids, layout))
        return batch

    def _batch_of(self, tensors: BatchTensors, layout: PackLayout, content: Content) -> PackedBatch:
        """Returns a batch of tensors that are written, without the keys of mixtures and images."""
        cu_seqlens, max_seqlen = layout.cu_seqlens.copy(), layout.max_seqlen  # a copy, which a trainer may write to
        if self.flatten and not layout.num_sequences:  # kernels take no empty row: its padding counts as a sequence
            cu_seqlens, max_seqlen = np.array([0, layout.row_tokens], dtype=np.int32), layout.row_tokens
        batch = PackedBatch(
            input_ids=tensors.input_ids,
            labels=tensors.labels,
            shift_labels=bool(self.shift_labels),
            sequence_ids=tensors.sequence_ids,
            position_ids=tensors.position_ids,
            attention_mask=tensors.attention_mask,
            cu_seqlens=torch.from_numpy(cu_seqlens),
            max_seqlen=max_seqlen,
            ids=torch.from_numpy(content.ids.copy()),
            layout=layout,
        )
        if layout.group_ids is not None:
            batch["group_ids"] = torch.from_numpy(layout.group_ids.copy())
        if self.context_rule is not None:
            batch["context_rule"] = astuple(self.context_rule)  # Lightning refuses batches with frozen dataclasses
        return batch

    def _write(
        self, arrays: BatchArrays, layout: PackLayout, content: Content, component_ids: NDArray[np.int32] | None
    ) -> Images | None:
        """Writes all tensors of a batch, and returns the images; None without media.

        Args:
            arrays: the memory of the tensors.
            layout: where the sequences lie.
            content: the sequences.
            component_ids: index of every sequence's component: int32 [n]; None without a mixture.
        """
        write_position_ids(
            arrays.position_ids,
            layout,
            first_tokens=content.first_tokens if self.continue_positions else None,
            num_bos=int(self.separators.bos_token_id is not None),
        )
        arrays.sequence_ids[:] = layout.sequence_ids().ravel()
        arrays.attention_mask.fill(1)
        for start, end in layout.padding_ranges:
            arrays.attention_mask[start:end] = 0
        if self._leaves_out_last:
            self._write_without_last(arrays, content)
            return None  # `_check_without_last` refuses media
        return self._write_tokens(arrays.input_ids, arrays.labels, layout, content, component_ids)

    def _write_tokens(
        self,
        input_ids: NDArray[np.int64],
        labels: NDArray[np.int64],
        layout: PackLayout,
        content: Content,
        component_ids: NDArray[np.int32] | None,
    ) -> Images | None:
        """Writes tokens and labels, int64 [T], and returns the images; None without media."""
        content.write_tokens(input_ids, layout.starts, self.separators)
        is_predicted = predicted_tokens(content, layout, scratch=labels)  # the labels are written last
        for start, end in layout.padding_ranges:
            input_ids[start:end] = self.pad_token_id
        check_tokens(input_ids, layout, content.ids, content.source)
        images = None
        if self.media is not None:
            names = None if component_ids is None else [self.components[i].name for i in component_ids.tolist()]
            images = read_images(self.media, input_ids, layout, content, names, self.pad_token_id)
            allowed = images.may_be_predicted
            is_predicted = allowed if is_predicted is None else is_predicted & allowed
        write_causal_labels(labels, input_ids, layout, is_predicted=is_predicted, shift=bool(self.shift_labels))
        return images

    def _write_without_last(self, arrays: BatchArrays, content: Content) -> None:
        """Writes tokens and shifted labels of a batch whose rooms have no place for each sequence's last token.

        The sequences are written whole into one row, with shifted labels. Then the last token of each is dropped, with
        its label, and the others are copied to the indices of the batch where the attention mask is 1.
        """
        whole = PackLayout.of_rows(content.lengths, np.array([len(content.ids)]), int(content.lengths.sum()))
        tokens, targets = np.empty((2, whole.num_tokens), dtype=np.int64)
        self._write_tokens(tokens, targets, whole, content, component_ids=None)  # only media need components
        is_kept = np.ones(whole.num_tokens, dtype=np.bool_)
        last_tokens = whole.starts + whole.lengths - 1
        is_kept[last_tokens[whole.lengths > 1]] = False  # a sequence's only token stays, as in `_layout`
        arrays.input_ids.fill(self.pad_token_id)
        arrays.labels.fill(IGNORE_INDEX)
        is_token = arrays.attention_mask == 1
        arrays.input_ids[is_token], arrays.labels[is_token] = tokens[is_kept], targets[is_kept]

    def _with_component_ids(self, block: BinBlock) -> BinBlock:
        """Returns a mixture's block with component ids; one without has only empty bins, whose component is -1."""
        if not self.components or block.component_ids is not None:
            return block
        return replace(block, component_ids=np.full(len(block), -1, dtype=np.int32))

    def _is_plain(self, block: BinBlock) -> bool:
        """Whether each sequence comes whole and fills its room, so that the source's lengths are not needed."""
        return self._pieces.are_whole(block.first_tokens) and not self._leaves_out_last

    def _content(self, block: BinBlock, source: TokenSource, loss_mask: TokenSource | None) -> Content:
        """Returns what goes into the rooms of a block's bins."""
        pieces = None if self._is_plain(block) else self._pieces
        return content_of(block, source, loss_mask, self.separators, pieces)

    def _layout(self, block: BinBlock, content: Content) -> PackLayout:
        """Returns the layout of a block's bins as rows; a ValueError names a bin that holds too many tokens."""
        lengths = content.lengths
        if self._leaves_out_last:  # but a room has at least one token, the only one of its sequence
            lengths = np.maximum(lengths - 1, 1)
        try:
            return PackLayout.of_rows(
                content.rooms,
                block.bin_ends,
                self.max_seq_len,
                lengths=lengths,
                group_ids=block.group_ids,
                shared_prefix=bool(self.shared_prefix),
            )
        except OverfullRowError as error:
            raise ValueError(
                f"the bin at position {block.positions[error.row]} (row {error.row} of the block) holds {error.filled} "
                f"tokens, more than max_seq_len {self.max_seq_len}; use the max_seq_len that the dataset was prepared "
                "with"
            ) from None
