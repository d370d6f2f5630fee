"""Hugging Face's padding-free training: what `DataCollatorWithFlattening` of transformers makes.

Owns its keys, for TRL and open-instruct too, which read the same; leaves attention to the model.
"""

from functools import partial
from typing import Any

import torch

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.preset import Preset

UNSHIFTED = "unshifted, since the model shifts them; -100 on the first token of each sequence"
NO_PADDING = "none; a batch without any sequence is one token, its label -100"


def padding_free_preset(
    *,
    return_position_ids: bool = True,
    return_flash_attn_kwargs: bool = True,
    return_seq_idx: bool = True,
    position_ids_start: int = 0,
) -> Preset:
    """Makes the preset of `transformers.DataCollatorWithFlattening`, whose options these are.

    Legend: T tokens, n sequences. Keys: `input_ids`, `labels` and `position_ids` int64 [1, T]; `cu_seq_lens_q` and
    `cu_seq_lens_k` int32 [n + 1]; `max_length_q` and `max_length_k` int; `seq_idx` int32 [1, T]. By default
    all are there. There is no `attention_mask`: with one, transformers would look for padding and not for sequences.

    FlashAttention reads the offsets, and its cost grows with the squares of the sequences' lengths. Without it models
    make a mask over all T tokens, whose cost grows with T²; `rows_preset` costs less there. Eager attention, SDPA and
    FlexAttention find sequences where positions do not go on by 1, and only while no cache is made: call the model
    with `use_cache=False`, as Hugging Face's trainers do.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = padding_free_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]
        ([0, 5, 8], 5)

    Args:
        return_position_ids: whether there are `position_ids`.
        return_flash_attn_kwargs: whether there are the offsets and the longest length.
        return_seq_idx: whether there is `seq_idx`, which state-space models read.
        position_ids_start: position of a sequence's first token; not 0 for models like RoBERTa.

    Raises:
        ValueError: `position_ids_start` is negative.
    """
    if position_ids_start < 0:
        raise ValueError(f"position_ids_start must be at least 0, got {position_ids_start}")
    return Preset(
        name="padding-free",
        trainer="models of transformers (5.23), as DataCollatorWithFlattening feeds them; use_cache=False",
        shift_labels=False,
        labels=UNSHIFTED,
        flatten=True,
        padding=NO_PADDING,
        is_quadratic=True,
        build=partial(
            _build,
            return_position_ids=return_position_ids,
            return_flash_attn_kwargs=return_flash_attn_kwargs,
            return_seq_idx=return_seq_idx,
            position_ids_start=position_ids_start,
        ),
    )


def _build(
    batch: PackedBatch,
    *,
    return_position_ids: bool,
    return_flash_attn_kwargs: bool,
    return_seq_idx: bool,
    position_ids_start: int,
) -> dict[str, Any]:
    keys: dict[str, Any] = {"input_ids": batch["input_ids"], "labels": batch["labels"]}
    if return_position_ids:
        refuse_continued_positions(batch)
        keys["position_ids"] = (
            batch["position_ids"] + position_ids_start if position_ids_start else batch["position_ids"]
        )
    if return_seq_idx:
        keys["seq_idx"] = batch["sequence_ids"]
    if return_flash_attn_kwargs:
        keys["cu_seq_lens_q"] = keys["cu_seq_lens_k"] = torch.from_numpy(batch["layout"].segments)
        keys["max_length_q"] = keys["max_length_k"] = max(batch["max_seqlen"], 1)
    return keys


def refuse_continued_positions(batch: PackedBatch) -> None:
    """Refuses batches with positions that go on from piece to piece.

    Where a piece went on from position 5 behind a sequence of 5 tokens, the model would see one sequence.

    Raises:
        ValueError: some sequence begins at another position than 0.
    """
    if batch["position_ids"].numpy().ravel()[batch["layout"].starts].any():
        raise ValueError(
            "continue_positions cannot be used with this preset: the model finds a sequence's beginning by its "
            "position; leave continue_positions=False"
        )
