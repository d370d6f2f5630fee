"""`BatchMaker`: makes batches of a dataset's bins, after checking that tokens and batch format fit the plan.

`dataset` and `packed_bins` both make their batches here. Leaves tensors to `batches.batch`, the options to
`presets/batch_format`, and the keys of a training stack to `presets/preset`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.batch import BatchAssembler, MixedComponent
from packhorse.client.batches.joined_rows import in_rows
from packhorse.client.batches.packed_batch import Batch, PackedBatch
from packhorse.client.presets import BatchFormat, Preset
from packhorse.client.presets.batch_format import preset_of
from packhorse.client.streams.blocks import BinBlock
from packhorse.client.streams.sent_tokens import TokensFromServer
from packhorse.client.streams.stream import BinStream
from packhorse.tokens import TokenSource, as_token_source
from packhorse.tokens.loss_mask import AUTO, loss_mask_of
from packhorse.tokens.pieces import PieceRule
from packhorse.tokens.recorded import check_tokens
from packhorse.types import StreamHeader


class BatchMaker:
    """Makes batches of one dataset's blocks. Workers get a pickled or forked copy.

    Call `prepare` with the stream's header first: it checks the tokens and the format against the plan.

    Args:
        tokens: anything that `as_token_source` accepts; None for the tokens that come with the bins.
        form: how the batches look.

    Raises:
        ValueError: the tokens or the loss mask are not a token source, or the mask belongs to other tokens.
    """

    def __init__(self, tokens: Any, form: BatchFormat) -> None:
        self.form = form
        self.tokens = TokensFromServer() if tokens is None else as_token_source(tokens)
        self.loss_mask = _chosen_loss_mask(self.tokens, form.loss_mask)
        self._assembler: BatchAssembler | None = None
        self._last_checked = ("", 0)  # no tokens have these
        """Fingerprint and number of sequences of the tokens that were checked last."""
        self._needs_groups = False
        """Whether bins must have groups, for `shared_prefix`."""
        self._rows_per_bin: NDArray[np.int64] | None = None
        """Short bins in a joined bin, of every component: int64 [C]; None if a bin is one row."""

    @property
    def wants_tokens(self) -> bool:
        """Whether tokens must be requested with the bins."""
        return isinstance(self.tokens, TokensFromServer)

    @property
    def preset(self) -> Preset | None:
        """The preset whose keys the batches get; None for PackedBatch's own."""
        return preset_of(self.form)

    def prepare(self, plan: StreamHeader, *, pin_memory: bool = False, as_sent: bool = False) -> None:
        """Adapts to a plan, after checking that tokens and format fit it. Call it before the first batch.

        Args:
            plan: the stream's header.
            pin_memory: whether batches are in page-locked memory.
            as_sent: whether a sequence is assembled without the prefix that it shares, as an audit needs it.

        Raises:
            TokenSourceError: the tokens are not those of the plan's dataset, or lack a component of its mixture.
            ValueError: the format does not fit the plan: component_rows without a mixture, or shared prefixes without
                trees.
        """
        self._check_prefixes(plan, as_sent=as_sent)
        self.tokens = _for_plan(self.tokens, plan)
        self._check_tokens_once(plan)
        if self.loss_mask is not None:
            self.loss_mask = _for_plan(self.loss_mask, plan)
        pieces = PieceRule.of(plan)
        components = zip(plan.components, pieces.longest_of_components, strict=True)
        self._assembler = BatchAssembler(
            plan.max_seq_len,
            truncate=pieces.longest is not None,
            align=plan.align,
            extra_tokens=plan.extra_tokens,
            components=tuple(MixedComponent(component.name, longest) for component, longest in components),
            context_rule=plan.context_rule,
            shares_prefixes=plan.shares_prefixes and not as_sent,
            pin_memory=pin_memory,
            **self.form.rows(),
        )
        # Trees need no groups, and of a mixture some components may have none.
        self._needs_groups = self.form.shared_prefix is True and not plan.components
        self._rows_per_bin = self._short_bins(plan)

    def _check_prefixes(self, plan: StreamHeader, *, as_sent: bool) -> None:
        """Refuses plans with shared prefixes without trees, and trees without each sequence's last token."""
        is_tree = self.form.shared_prefix == "tree" or (self.preset is not None and self.preset.folds)
        if plan.shares_prefixes and not is_tree and not as_sent:
            raise ValueError(
                "the dataset's groups share prefixes, which take room once: give BatchFormat(shared_prefix='tree') or "
                "preset 'trl_async', or prepare the dataset without share_prefixes"
            )
        if is_tree and self.form.separators.leaves_out_last(plan.extra_tokens):
            raise ValueError(
                f"trees go without extra_tokens={plan.extra_tokens}, which leaves out the last token of each sequence; "
                f"prepare the dataset with extra_tokens={self.form.separators.num_tokens}"
            )

    def _short_bins(self, plan: StreamHeader) -> NDArray[np.int64] | None:
        """Returns the short bins in a joined bin, of every component: int64 [C]; None if a bin is one row."""
        if not self.form.component_rows:
            return None
        if not plan.components:
            raise ValueError(
                "component_rows has no effect: the dataset is no mixture; leave it out, or train on a mixture"
            )
        rows_per_bin = np.array([component.rows_per_bin for component in plan.components], dtype=np.int64)
        return rows_per_bin if (rows_per_bin > 1).any() else None

    def _check_tokens_once(self, plan: StreamHeader) -> None:
        """Checks that the tokens are those that a plan was made from, if that is quick and not yet done."""
        recorded = (plan.tokens_fingerprint, plan.tokens_sequences)
        if not plan.tokens_fingerprint or recorded == self._last_checked:
            return
        if plan.id_column or self.wants_tokens:
            return  # with an id column, ids are not rows; tokens that come with the bins are the dataset's own
        if self.tokens.knows_lengths:  # else the check, which compares some of the lengths, would take seconds
            check_tokens(self.tokens, *recorded)
            self._last_checked = recorded

    def assemble(self, bins: BinBlock) -> PackedBatch:
        """Assembles bins into one batch of PackedBatch's keys; see `BatchAssembler.assemble`."""
        assert self._assembler is not None
        self._check_groups(bins)
        return self._assembler.assemble(bins, self.tokens, loss_mask=self.loss_mask)

    def assemble_steps(self, bins: BinBlock, batch_size: int) -> Iterator[PackedBatch]:
        """Yields a batch for each `batch_size` bins; see `BatchAssembler.assemble_steps`."""
        assert self._assembler is not None
        self._check_groups(bins)
        in_each_bin = [(1, bins)] if self._rows_per_bin is None else in_rows(bins, self._rows_per_bin, batch_size)
        for num_rows, rows in in_each_bin:
            assembler = replace(self._assembler, max_seq_len=self._assembler.max_seq_len // num_rows)
            yield from assembler.assemble_steps(
                rows, self.tokens, batch_size=batch_size * num_rows, loss_mask=self.loss_mask
            )

    def batches(self, stream: BinStream, *, pin_memory: bool) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) for each step of a stream; batches have the preset's keys."""
        digest = stream.header.digest
        self._prepare_for(stream, pin_memory)
        for block in stream:
            if stream.header.digest != digest:  # the stream was reopened, and meanwhile the mixture got another stage
                digest = stream.header.digest
                self._prepare_for(stream, pin_memory)
            end = 0  # of the bins of the block that are in batches
            for stretch, steps in stream.topology.by_stretch(block.steps):  # steps of one batch size
                begin, end = end, end + len(steps) * stretch.batch_size
                batches = self.assemble_steps(block.slice(begin, end), stretch.batch_size)
                yield from zip(steps, map(self.convert, batches), strict=True)

    def _prepare_for(self, stream: BinStream, pin_memory: bool) -> None:
        """Prepares for a stream, and lets the preset check the plan."""
        self.prepare(stream.header, pin_memory=pin_memory)
        if self.preset is not None:
            self.preset.check_plan(stream.header.max_sequences_per_bin, stream.topology.most_bins_of_rank)

    def convert(self, batch: PackedBatch) -> Batch:
        """Returns a batch with the preset's keys; without a preset, the batch itself."""
        return batch if self.preset is None else Batch(self.preset.convert(batch))

    def _check_groups(self, bins: BinBlock) -> None:
        """Raises a ValueError if the format needs groups, and the bins have sequences but no groups."""
        if self._needs_groups and bins.group_ids is None and len(bins.ids):
            raise ValueError(
                "shared_prefix has no effect: the dataset was prepared without groups, and no sequence is a prefix of "
                "others; leave it out, or prepare the dataset with groups"
            )


def _chosen_loss_mask(tokens: TokenSource, choice: Any) -> TokenSource | None:
    """Returns the source of the loss mask; None to predict all tokens.

    Args:
        tokens: the source of the tokens. If these come with the bins, so does the mask that "auto" means.
        choice: the option `loss_mask` of a BatchFormat.
    """
    if not isinstance(tokens, TokensFromServer):
        return loss_mask_of(tokens, choice)
    if choice is None:
        return None
    if isinstance(choice, str) and choice == AUTO:
        return TokensFromServer()
    return as_token_source(choice, is_loss_mask=True)


def _for_plan(source: TokenSource, plan: StreamHeader) -> TokenSource:
    """Returns the source prepared for the plan's ids: of a mixture's components, or of an id column."""
    return source.for_components(plan.components) if plan.components else source.for_ids(plan.id_column)
