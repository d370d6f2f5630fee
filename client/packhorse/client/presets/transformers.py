"""The presets of Hugging Face's models: all sequences in one row (padding-free), or one row for each bin.

Owns their keys. Padding-free batches have the keys of transformers' `DataCollatorWithFlattening`, which TRL and
open-instruct read too: see `presets/_trl` and `presets/_open_instruct`. The Trainer's callbacks are in
`trainers/transformers`.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.row_format import check_total_multiple_of
from packhorse.client.presets.preset import Preset

_UNSHIFTED = "unshifted, since the model shifts them; -100 on the first token of each sequence"
"""The rule for labels, as `Preset.labels` says it."""


def padding_free_preset(
    *,
    return_position_ids: bool = True,
    return_flash_attn_kwargs: bool = True,
    return_seq_idx: bool = True,
    return_padding_mask: bool = False,
    position_ids_start: int = 0,
    total_multiple_of: int = 1,
    max_sequences: int | None = None,
) -> Preset:
    """Makes the preset of `transformers.DataCollatorWithFlattening`, with all its options and more.

    Legend: T tokens, n sequences. Keys: `input_ids`, `labels` and `position_ids` int64 [1, T]; `cu_seq_lens_q` and
    `cu_seq_lens_k` int32 [n + 1]; `max_length_q` and `max_length_k` int; `seq_idx` int32 [1, T]. A batch has all of
    these by default. There is no `attention_mask`: with one, transformers would look for padding instead of the bounds
    of sequences.

    FlashAttention reads the offsets, and its cost grows with the squares of the sequences' lengths. Without it, models
    make a mask over all T tokens, whose cost grows with T²; then `rows_preset` costs less. Eager attention, SDPA and
    FlexAttention find a sequence's beginning where positions do not continue by 1, but only without a cache: call the
    model with `use_cache=False`, as Hugging Face's trainers do.

    With `total_multiple_of`, padding follows the last sequence, as one more sequence whose labels are -100.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = padding_free_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]
        ([0, 5, 8], 5)

    Args:
        return_position_ids: whether to add `position_ids`.
        return_flash_attn_kwargs: whether to add the offsets and the longest length.
        return_seq_idx: whether to add `seq_idx`, for state-space models.
        return_padding_mask: whether to add `padding_mask` bool [1, T], True on padding, for losses of experts. Models
            of transformers do not take it; pop it before you call one.
        position_ids_start: position of a sequence's first token; not 0 for models like RoBERTa.
        total_multiple_of: T is a multiple of it: 16, 32 or 128 for FP8 (`alignment_for`). With max_seq_len · batch_size
            all batches have the same size.
        max_sequences: the most sequences in a batch, for static shapes: `cu_seq_lens_q` has max_sequences + 2 entries,
            the last one repeated, and `max_length_q` is T. The plan is checked when it is opened. None: the number
            varies.

    Raises:
        ValueError: a number is out of range.
    """
    if position_ids_start < 0:
        raise ValueError(f"position_ids_start must be at least 0, got {position_ids_start}")
    if max_sequences is not None and max_sequences < 1:
        raise ValueError(f"max_sequences must be at least 1, got {max_sequences}")
    check_total_multiple_of(total_multiple_of)
    num_segments = None if max_sequences is None else max_sequences + 1  # one more, for padding
    padding = "none; a batch without any sequence is one token, its label -100"
    if total_multiple_of > 1:
        padding = f"a sequence of its own, to a multiple of {total_multiple_of}"
    return Preset(
        name="padding-free",
        trainer="models of transformers (5.23), as DataCollatorWithFlattening feeds them; use_cache=False",
        shift_labels=False,
        labels=_UNSHIFTED,
        flatten=True,
        padding=padding,
        total_multiple_of=total_multiple_of,
        num_segments=num_segments,
        is_quadratic=True,
        takes_media=True,
        build=partial(
            _build_padding_free,
            return_position_ids=return_position_ids,
            return_flash_attn_kwargs=return_flash_attn_kwargs,
            return_seq_idx=return_seq_idx,
            return_padding_mask=return_padding_mask,
            position_ids_start=position_ids_start,
            num_segments=num_segments,
        ),
    )


def rows_preset(*, return_padding_mask: bool = False) -> Preset:
    """Makes the preset for models of transformers with eager attention, SDPA or FlexAttention.

    Legend: B bins, L tokens in a row. Keys: `input_ids`, `labels` and `position_ids` int64 [B, L], `seq_idx` int32
    [B, L]. There is no `attention_mask`: without one, such a model makes a mask for each row from the places where
    positions do not continue by 1, but only without a cache: `use_cache=False`, as in Hugging Face's trainers. Some
    models make no mask; `sees_other_sequences` tests yours.

    Attention costs B · L². One row of all tokens costs (B · L)², unless FlashAttention skips the masked pairs.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2, seed=1, preset="rows")
        >>> batch = next(iter(dataset))
        >>> batch["input_ids"].shape, batch["position_ids"][0].tolist()
        (torch.Size([2, 8]), [0, 1, 2, 3, 4, 0, 1, 2])

    Args:
        return_padding_mask: whether to add `padding_mask` bool [B, L], True on padding, for losses of experts. Models
            of transformers do not take it; pop it before you call one.
    """
    return Preset(
        name="rows",
        trainer="models of transformers (5.23) with eager, SDPA or FlexAttention; use_cache=False",
        shift_labels=False,
        labels=_UNSHIFTED + " and on padding",
        flatten=False,
        has_rows=True,
        takes_media=True,
        padding="a sequence of its own at the end of its row, its labels -100",
        build=partial(_build_rows, return_padding_mask=return_padding_mask),
    )


def _build_padding_free(
    batch: PackedBatch,
    *,
    return_position_ids: bool,
    return_flash_attn_kwargs: bool,
    return_seq_idx: bool,
    return_padding_mask: bool,
    position_ids_start: int,
    num_segments: int | None,
) -> dict[str, Any]:
    """Returns the keys of `padding_free_preset` for a batch."""
    keys: dict[str, Any] = {"input_ids": batch["input_ids"], "labels": batch["labels"]}
    if return_position_ids:
        _refuse_continued_positions(batch)
        positions = batch["position_ids"]
        keys["position_ids"] = positions + position_ids_start if position_ids_start else positions
    if return_seq_idx:
        keys["seq_idx"] = batch["sequence_ids"]
    if return_flash_attn_kwargs:
        offsets, max_length = _offsets(batch["layout"], num_segments)
        keys["cu_seq_lens_q"] = keys["cu_seq_lens_k"] = torch.from_numpy(offsets)
        keys["max_length_q"] = keys["max_length_k"] = max_length
    if return_padding_mask:
        keys["padding_mask"] = batch["attention_mask"] == 0
    return keys


def _offsets(layout: PackLayout, num_segments: int | None) -> tuple[NDArray[np.int32], int]:
    """Returns the offsets of the sequences and the padding after them, and the most tokens of any of these.

    With `num_segments`, both are constant: the last offset is repeated, and the most is the row's length.
    """
    offsets = layout.segments
    if num_segments is None:
        num_padding = layout.row_tokens - layout.num_tokens
        return offsets, max(layout.max_seqlen, num_padding)
    if len(offsets) - 1 > num_segments:
        raise ValueError(
            f"the batch has {layout.num_sequences} sequences, more than max_sequences {num_segments - 1}; give it at "
            "least bins · sequences in a bin, and plan with max_sequences_per_bin"
        )
    num_missing = num_segments + 1 - len(offsets)
    return np.pad(offsets, (0, num_missing), mode="edge"), layout.row_tokens


def _refuse_continued_positions(batch: PackedBatch) -> None:
    """Refuses batches with positions that continue from piece to piece.

    If a piece continued from position 5 after a sequence of 5 tokens, the model would see one sequence.

    Raises:
        ValueError: a sequence does not begin at position 0.
    """
    if batch["position_ids"].numpy().ravel()[batch["layout"].starts].any():
        raise ValueError(
            "continue_positions cannot be used with this preset: the model finds a sequence's beginning by its "
            "position; leave continue_positions=False"
        )


def _build_rows(batch: PackedBatch, *, return_padding_mask: bool) -> dict[str, Any]:
    """Returns the keys of `rows_preset` for a batch."""
    _refuse_continued_positions(batch)
    keys = {
        "input_ids": batch["input_ids"],
        "labels": batch["labels"],
        "position_ids": batch["position_ids"],
        "seq_idx": batch["sequence_ids"],
    }
    if return_padding_mask:
        keys["padding_mask"] = batch["attention_mask"] == 0
    return keys
