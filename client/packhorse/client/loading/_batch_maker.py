"""From blocks of bins to batches, by a dataset's options.

Owns the token sources, and what a plan asks of both them and the format; leaves where blocks come from to `dataset` and
`packed_bins`, and the tensors to `batches.batch`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.batch import BatchAssembler, MixedComponent, in_rows
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets import BatchFormat, Preset
from packhorse.client.sources import MixtureSource, TokenSource, TokenSourceError, as_token_source
from packhorse.client.streams.blocks import BinBlock, cuts_ends
from packhorse.client.streams.stream import BinStream
from packhorse.topology import RoomRule
from packhorse.types import Component, StreamHeader


class BatchMaker:
    """Makes batches of one dataset's blocks; it travels to workers by pickle.

    Args:
        tokens: what `as_token_source` takes.
        form: how the batches look.

    Raises:
        ValueError: tokens or loss mask are no source.
    """

    def __init__(self, tokens: Any, form: BatchFormat) -> None:
        self.form = form
        self.tokens = as_token_source(tokens)
        self.loss_mask = None if form.loss_mask is None else as_token_source(form.loss_mask, is_loss_mask=True)
        if isinstance(self.loss_mask, MixtureSource):
            self.loss_mask = self.loss_mask.as_mask_of(self.tokens)
        elif self.loss_mask is not None and isinstance(self.tokens, MixtureSource):
            raise TokenSourceError(
                "tokens are given by component, but the loss mask is not; give it the same way, {NAME: mask}, for the "
                "components that have one"
            )
        self._assembler: BatchAssembler | None = None
        self._wants_groups = False
        self._rows_per_bin: NDArray[np.int64] | None = None  # of every component, where rows are to be theirs

    @property
    def preset(self) -> Preset | None:
        """Whose keys the batches get; None for PackedBatch's own."""
        return self.form.preset if isinstance(self.form.preset, Preset) else None

    def prepare(self, plan: StreamHeader, *, pin_memory: bool = False) -> None:
        """Learns what the plan asks of batches; before the first of them.

        Raises:
            TokenSourceError: the tokens are not those of the plan's dataset, or lack a component of its mixture.
            ValueError: component_rows is asked for without a mixture.
        """
        self.tokens = _of_plan(self.tokens, plan)
        if self.loss_mask is not None:
            self.loss_mask = _of_plan(self.loss_mask, plan)
        self._assembler = BatchAssembler(
            plan.max_seq_len,
            truncate=cuts_ends(plan.over_length, plan.keep),
            align=plan.align,
            extra_tokens=plan.extra_tokens,
            components=tuple(_mixed(component, plan) for component in plan.components),
            context_rule=plan.context_rule,
            pin_memory=pin_memory,
            **self.form.rows(),
        )
        if self.form.component_rows and not plan.components:
            raise ValueError(
                "component_rows has no effect: the dataset is no mixture; leave it out, or train on a mixture"
            )
        self._wants_groups = self.form.shared_prefix and not plan.components
        rows_per_bin = np.array([component.rows_per_bin for component in plan.components], dtype=np.int64)
        self._rows_per_bin = rows_per_bin if self.form.component_rows and (rows_per_bin > 1).any() else None

    def assemble(self, bins: BinBlock) -> PackedBatch:
        """Assembles bins into one batch of PackedBatch's keys; see `BatchAssembler.assemble`."""
        assert self._assembler is not None
        self._check_groups(bins)
        return self._assembler.assemble(bins, self.tokens, loss_mask=self.loss_mask)

    def assemble_steps(self, bins: BinBlock, batch_size: int) -> Iterator[PackedBatch]:
        """Assembles the bins of some steps into a batch each; see `BatchAssembler.assemble_steps`."""
        assert self._assembler is not None
        self._check_groups(bins)
        parts = [(1, bins)] if self._rows_per_bin is None else in_rows(bins, self._rows_per_bin, batch_size)
        for num_rows, rows in parts:
            assembler = replace(self._assembler, max_seq_len=self._assembler.max_seq_len // num_rows)
            yield from assembler.assemble_steps(
                rows, self.tokens, batch_size=batch_size * num_rows, loss_mask=self.loss_mask
            )

    def batches(self, stream: BinStream, *, pin_memory: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields each step of a stream with its batch, in the preset's keys."""
        digest = stream.header.digest
        self._open(stream, pin_memory)
        for block in stream:
            if stream.header.digest != digest:  # stages were appended to a mixture
                digest = stream.header.digest
                self._open(stream, pin_memory)
            end = 0
            for stretch, steps in stream.topology.by_stretch(block.steps):
                begin, end = end, end + len(steps) * stretch.batch_size
                batches = self.assemble_steps(block.slice(begin, end), stretch.batch_size)
                yield from zip(steps, map(self.convert, batches), strict=True)

    def _open(self, stream: BinStream, pin_memory: bool) -> None:
        self.prepare(stream.header, pin_memory=pin_memory)
        if self.preset is not None:
            self.preset.check_plan(stream.header.max_sequences_per_bin, stream.topology.most_bins_of_rank)

    def convert(self, batch: PackedBatch) -> dict[str, Any]:
        """Returns the preset's keys of a batch; the batch itself where there is no preset."""
        return cast(dict[str, Any], batch) if self.preset is None else self.preset.convert(batch)

    def _check_groups(self, bins: BinBlock) -> None:
        if self._wants_groups and bins.group_ids is None and len(bins.ids):
            raise ValueError(
                "shared_prefix has no effect: the dataset was prepared without groups, and no sequence is a prefix of "
                "others; leave it out, or prepare the dataset with groups"
            )


def _of_plan(source: TokenSource, plan: StreamHeader) -> TokenSource:
    """Returns the source as it takes the plan's ids."""
    return source.for_components(plan.components) if plan.components else source.for_ids(plan.id_column)


def _mixed(component: Component, plan: StreamHeader) -> MixedComponent:
    longest = RoomRule(component.max_seq_len, plan.align, plan.extra_tokens).longest
    return MixedComponent(component.name, longest if cuts_ends(component.over_length, component.keep) else None)
