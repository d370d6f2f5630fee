"""From blocks of bins to batches: what a dataset's options say once, and every block after that goes through.

Owns the token sources and the preset, and what a plan asks of both; leaves where blocks come from to `dataset` and
`packed_bins`, and the tensors to `batches.batch`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.batches.component_rows import MixedComponent, in_rows
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.separators import Separators, check_token_id
from packhorse.client.presets import Preset, get_preset
from packhorse.client.sources import MixtureSource, TokenSource, TokenSourceError, as_token_source
from packhorse.client.streams.blocks import BinBlock
from packhorse.client.streams.components import Component
from packhorse.client.streams.over_length import cuts_ends
from packhorse.client.streams.stream import StreamHeader
from packhorse.client.transport.requests import shortened
from packhorse.topology import RoomRule


class BatchMaker:
    """Makes batches of one dataset's blocks; it travels to workers by pickle.

    Args:
        tokens: what `as_token_source` takes.
        loss_mask: likewise; None where every token is predicted.
        separators: special tokens put around each sequence.
        preset: name of a training stack, or a Preset; None for PackedBatch's own keys.
        pad_token_id: token that fills a bin's free end.
        flatten: whether sequences come end to end in one row; None as the preset wants it, else False.
        shift_labels: whether labels are shifted; None as the preset wants it, else False.
        continue_positions: whether position ids of a split sequence's pieces go on.
        shared_prefix: whether each group's first sequence is a prefix that the others see.
        component_rows: whether the rows of `assemble_steps` are as short as the batch's components allow.

    Raises:
        ValueError: an argument is out of range, or contradicts the preset.
    """

    def __init__(
        self,
        tokens: Any,
        *,
        loss_mask: Any,
        separators: Separators | None,
        preset: Preset | str | None,
        pad_token_id: int,
        flatten: bool | None,
        shift_labels: bool | None,
        continue_positions: bool,
        shared_prefix: bool,
        component_rows: bool = False,
    ) -> None:
        self.preset = get_preset(preset) if isinstance(preset, str) else preset
        for name, given, kind in (("preset", self.preset, Preset), ("separators", separators, Separators)):
            if given is not None and not isinstance(given, kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {shortened(given)}")
        for name, flag in (
            ("flatten", flatten),
            ("shift_labels", shift_labels),
            ("continue_positions", continue_positions),
            ("shared_prefix", shared_prefix),
            ("component_rows", component_rows),
        ):
            if flag not in (None, True, False):
                raise ValueError(f"{name} must be True or False, got {shortened(flag)}")
        if shared_prefix and self.preset is not None:
            raise ValueError(
                f"shared_prefix goes without a preset: {self.preset.trainer} would not see prefixes; take the batch's "
                "own keys and give the model build_block_mask or build_packing_attention_bias of the batch"
            )
        self.flatten = self._as_preset("flatten", flatten)
        self.tokens = as_token_source(tokens)
        self.loss_mask = None if loss_mask is None else as_token_source(loss_mask, is_loss_mask=True)
        if isinstance(self.loss_mask, MixtureSource):
            self.loss_mask = self.loss_mask.as_mask_of(self.tokens)
        elif self.loss_mask is not None and isinstance(self.tokens, MixtureSource):
            raise TokenSourceError(
                "tokens are given by component, but the loss mask is not; give it likewise, {NAME: mask}, for the "
                "components that have one"
            )
        self.pad_token_id = check_token_id("pad_token_id", pad_token_id)
        self.separators = separators or Separators()
        self._assembler_of = partial(
            BatchAssembler,
            pad_token_id=self.pad_token_id,
            separators=self.separators,
            flatten=self.flatten,
            shift_labels=self._as_preset("shift_labels", shift_labels),
            continue_positions=continue_positions,
            shared_prefix=shared_prefix,
        )
        self._assembler: BatchAssembler | None = None
        self._component_rows = component_rows
        self._shared_prefix = shared_prefix
        self._wants_groups = False
        self._rows_per_bin: NDArray[np.int64] | None = None  # of every component, where rows are to be theirs

    def prepare(self, plan: StreamHeader, *, pin_memory: bool = False) -> None:
        """Learns what the plan asks of batches; before the first of them.

        Raises:
            TokenSourceError: the tokens are not those of the plan's dataset, or lack a component of its mixture.
            ValueError: component_rows is asked for without a mixture.
        """
        self.tokens = _of_plan(self.tokens, plan)
        if self.loss_mask is not None:
            self.loss_mask = _of_plan(self.loss_mask, plan)
        self._assembler = self._assembler_of(
            plan.max_seq_len,
            truncate=cuts_ends(plan.over_length, plan.keep),
            align=plan.align,
            extra_tokens=plan.extra_tokens,
            components=tuple(_mixed(component, plan) for component in plan.components),
            pin_memory=pin_memory,
        )
        if self._component_rows and not plan.components:
            raise ValueError(
                "component_rows has no effect: the dataset is no mixture; leave it out, or train on a mixture"
            )
        self._wants_groups = self._shared_prefix and not plan.components
        rows_per_bin = np.array([component.rows_per_bin for component in plan.components], dtype=np.int64)
        self._rows_per_bin = rows_per_bin if self._component_rows and (rows_per_bin > 1).any() else None

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

    def convert(self, batch: PackedBatch) -> dict[str, Any]:
        """Returns the preset's keys of a batch; the batch itself where there is no preset."""
        return cast(dict[str, Any], batch) if self.preset is None else self.preset.convert(batch)

    def _check_groups(self, bins: BinBlock) -> None:
        if self._wants_groups and bins.group_ids is None and len(bins.ids):
            raise ValueError(
                "shared_prefix has no effect: the dataset was prepared without groups, and no sequence is a prefix of "
                "others; leave it out, or prepare the dataset with groups"
            )

    def _as_preset(self, name: str, wanted: bool | None) -> bool:
        if self.preset is None:
            return bool(wanted)
        declared: bool = getattr(self.preset, name)
        if wanted not in (None, declared):
            raise ValueError(
                f"{name}={wanted} contradicts preset {self.preset.name!r}, which is {name}={declared}: "
                f"{self.preset.trainer}"
            )
        return declared


def _of_plan(source: TokenSource, plan: StreamHeader) -> TokenSource:
    """Returns the source as it takes the plan's ids."""
    return source.for_components(plan.components) if plan.components else source.for_ids(plan.id_column)


def _mixed(component: Component, plan: StreamHeader) -> MixedComponent:
    longest = RoomRule(component.max_seq_len, plan.align, plan.extra_tokens).longest
    return MixedComponent(component.name, longest if cuts_ends(component.over_length, component.keep) else None)
