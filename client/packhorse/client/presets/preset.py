"""`Preset`: the declaration of a training stack's batches, and the check that a batch and a plan fit it.

Owns the fields that every preset declares, and these checks. Leaves the presets themselves to `registry`, which lists
the file of each.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from packhorse.client.batches.labels import IGNORE_INDEX
from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.masks.prefixes import refuse_prefixes
from packhorse.topology.checks import counted

_FLASH_ATTENTION = ("flash_attn", "flash_attn_interface", "flash_attn_3", "kernels")
"""Packages through which transformers can use FlashAttention; any of them is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The keys, shapes and conventions of one training stack.

    A preset is pickled for dataloader workers, so `build` must be a function at the top of a module, or a `partial` of
    one. Printing a preset shows what it declares.

    Example:
        >>> from packhorse.client import get_preset
        >>> print(get_preset("torchtune-0.6"))
        torchtune-0.6: recipes of torchtune up to 0.6.1
          form: one row for each bin
          labels: unshifted, since the recipe shifts them; -100 on the first token of each sequence and on padding
          padding: the last segment of its row; positions go on counting, labels -100
    """

    name: str
    """Name for `PackedDataset(preset=…)`."""
    trainer: str
    """The training stack, and its versions that were checked."""
    shift_labels: bool
    """Whether `labels[t]` is the token after `t`; False if the trainer shifts them itself."""
    labels: str
    """The rule for labels, in words: who shifts them, and what is left out of the loss."""
    flatten: bool
    """Whether all sequences of a batch are joined in one row, without padding."""
    padding: str
    """The rule for padding, in words."""
    total_multiple_of: int = 1
    """The multiple of tokens to which a flat batch is padded at its end."""
    num_segments: int | None = None
    """Number of segments in the offsets of every batch (with `has_rows`, of every row), padding included; None if it
    varies.
    """
    is_quadratic: bool = False
    """Whether attention without FlashAttention costs the square of a batch's tokens, and not of a row's."""
    build: Callable[[PackedBatch], dict[str, Any]]
    """Function from a batch of the declared form to the trainer's keys. It does not change the batch."""
    has_rows: bool = False
    """Whether every key has one item for each bin, so that `PackedBins` can return single bins."""
    folds: bool = False
    """Whether its rows are trees, in which a common prefix of sequences is written once."""
    takes_media: bool = False
    """Whether the trainer takes images: their tensors, and position ids [4, B, L] if the model has three."""

    def convert(self, batch: PackedBatch) -> dict[str, Any]:
        """Returns the trainer's keys for a batch that was assembled with the declared `shift_labels` and `flatten`.

        Tensors may share the batch's memory.

        Raises:
            ValueError: the batch was assembled in another form, lacks what the trainer needs, or is on a GPU already.
        """
        self._check_form(batch)
        if "media" not in batch:
            return self.build(batch)
        return self.build(batch) | {key: batch[key] for key in batch["media"].keys}

    def warn_of_cost(self, batch_size: int) -> None:
        """Warns, once in a process, if attention over one long row will be slow because FlashAttention is missing."""
        if not self.is_quadratic or batch_size == 1:
            return
        if any(find_spec(package) is not None for package in _FLASH_ATTENTION):
            return
        warnings.warn(
            f"preset {self.name!r} lays all {batch_size} bins of a batch into one row, and FlashAttention is not "
            f"installed: other attention costs {batch_size} times as much as it needs to, the square of the row. "
            'Install flash-attn (or kernels), or take preset="rows", or batch_size=1 and accumulate gradients over '
            f"{batch_size} times as many batches",
            stacklevel=2,  # always the same line, so that Python shows it once
        )

    def check_plan(self, max_sequences_per_bin: int, batch_size: int) -> None:
        """Refuses a plan whose bins may have too many sequences for the offsets of this preset, before the first batch.

        The plan's largest bin is the limit: if the remainder policy spreads the last step's sequences over more bins,
        these are not larger.

        Args:
            max_sequences_per_bin: the most sequences in any bin of the plan.
            batch_size: bins in a batch.

        Raises:
            ValueError: a batch of the largest bins would not fit.
        """
        if self.num_segments is None:
            return
        # Padding is one segment of a flat batch, or of a row with offsets of its own: there the user chose
        # `max_sequences`, to which `num_segments` adds one. Rows that share offsets have one segment of padding each:
        # there the user chose `num_sequences`, which counts them and is `num_segments` itself.
        has_one_padding = self.flatten or self.has_rows
        argument = "max_sequences" if has_one_padding else "num_sequences"
        chosen = self.num_segments - int(has_one_padding)
        num_bins = 1 if self.has_rows else batch_size  # bins that share offsets
        needed = num_bins * (max_sequences_per_bin + int(not has_one_padding))
        if needed > chosen:
            and_padding = "" if has_one_padding else " and what is left of each row"
            raise ValueError(
                f"preset {self.name!r} has {argument} {chosen}, but this plan's largest bins need {needed}: "
                f"{counted(num_bins, 'bin')} of {max_sequences_per_bin} sequences{and_padding}; take "
                f"{argument}={needed}, or prepare the dataset with a smaller max_sequences_per_bin"
            )

    def refuse_media(self) -> None:
        """Refuses images if the trainer does not take them.

        Raises:
            ValueError: the trainer takes no images.
        """
        if not self.takes_media:
            raise ValueError(
                f"preset {self.name!r} carries no media: take preset 'rows' or 'padding-free', or the batch's own keys"
            )

    def _check_form(self, batch: PackedBatch) -> None:
        """Raises a ValueError for a batch that `build` cannot take, or that was not assembled as declared."""
        layout = batch["layout"]
        if "media" in batch:
            self.refuse_media()
        refuse_prefixes(layout, f"preset {self.name!r}")
        if batch["labels"].device.type != "cpu":
            raise ValueError(
                f"preset {self.name!r} converts batches in host memory, and this one is on {batch['labels'].device}; "
                "give the preset to the dataset (preset=…), or convert before the batch is moved"
            )
        self._check_rows(layout)
        self._check_label_shift(batch)

    def _check_rows(self, layout: PackLayout) -> None:
        """Raises a ValueError if a flat preset gets several rows, or a row that is padded to another length."""
        multiple = self.total_multiple_of
        num_multiples = max(-(-layout.num_tokens // multiple), 1)  # rounded up; a batch without any sequence has one
        row_tokens = num_multiples * multiple
        if self.flatten and (layout.num_rows != 1 or layout.row_tokens != row_tokens):
            options = "flatten=True" + (f" and total_multiple_of={multiple}" if multiple > 1 else "")
            raise ValueError(
                f"preset {self.name!r} takes sequences end to end in one row; assemble the batch with {options}"
            )

    def _check_label_shift(self, batch: PackedBatch) -> None:
        """Raises a ValueError if the labels would be shifted twice, or by nobody."""
        layout = batch["layout"]
        is_shifted = batch.get("shift_labels")
        if is_shifted is None:  # a batch that the user made: the tokens that are left out of the loss show it
            # Shifted labels leave out each sequence's last token, others its first.
            left_out = layout.starts + layout.lengths - 1 if self.shift_labels else layout.starts
            is_wrong = (batch["labels"].numpy().ravel()[left_out] != IGNORE_INDEX).any()
            is_shifted = self.shift_labels != is_wrong  # as declared, unless it is wrong
        if bool(is_shifted) != self.shift_labels:
            raise ValueError(
                f"the labels would be shifted {'by nobody' if self.shift_labels else 'twice'}: assemble batches for "
                f"preset {self.name!r} with shift_labels={self.shift_labels}"
            )

    def __str__(self) -> str:
        form = "one row for all sequences" if self.flatten else "one row for each bin"
        return f"{self.name}: {self.trainer}\n  form: {form}\n  labels: {self.labels}\n  padding: {self.padding}"
