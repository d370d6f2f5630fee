"""Preset `megatron-lm`: the keys of Megatron-LM's `pretrain_gpt.py` with `--sft`, and their static shapes.

Leaves the alignment that segments need to `megatron_alignment`, and Transformer Engine's THD layout to `megatron`.
Megatron itself splits batches over ranks.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from packhorse.client.batches.labels import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets._row_extents import row_extents
from packhorse.client.presets.megatron_alignment import check_segments, segment_multiple
from packhorse.client.presets.preset import Preset


def megatron_lm_preset(
    *, context_parallel_size: int = 1, tensor_parallel_size: int = 1, max_sequences: int | None = None
) -> Preset:
    """Makes the preset of Megatron-LM's `pretrain_gpt.py` with `--sft` (packed sequences).

    Legend: B rows (the micro-batch), L tokens in a row, k segments in the row with the most: the rooms of its sequences
    and the rest of the row. Keys: `tokens`, `labels` and `position_ids` int64 [B, L]; `loss_mask` float32 [B, L], 0
    exactly where labels are -100; `cu_seqlens` int32 [B, k + 1], the offsets of each row's segments, from 0 to L, with
    L repeated in rows of fewer segments; `max_seqlen` int32 [B]; `padding_mask` bool [B, L], True on padding, which
    `get_megatron_batch` passes on.

    Offsets include padding, as Megatron's own scheduler gives Transformer Engine. There are no offsets
    without padding: without context parallelism Megatron sends only one kind to tensor-parallel peers, so with both
    kinds the ranks would compute different results.

    Context parallelism needs segments that are multiples, as in `megatron_preset`.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = megatron_lm_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["tokens"].shape, batch["cu_seqlens"].tolist(), batch["max_seqlen"].tolist()
        (torch.Size([2, 8]), [[0, 5, 8], [0, 5, 8]], [5, 5])

    Args:
        context_parallel_size: CP, the ranks that share a sequence.
        tensor_parallel_size: TP, the tensor-parallel ranks, if sequence parallelism is used; else 1.
        max_sequences: the most sequences in a row, for static shapes: `cu_seqlens` has max_sequences + 2 entries for
            each row, and `max_seqlen` is L. The plan is checked when it is opened. None: the number varies.

    Raises:
        ValueError: a number is below 1.
    """
    if max_sequences is not None and max_sequences < 1:
        raise ValueError(f"max_sequences must be at least 1, got {max_sequences}")
    num_segments = None if max_sequences is None else max_sequences + 1
    return Preset(
        name="megatron-lm",
        trainer="get_batch of Megatron-LM (core 0.16 to 0.20) with --sft",
        shift_labels=True,
        labels="shifted; -100, and loss_mask 0, on the last token of each sequence and on padding",
        flatten=False,
        padding="in the offsets; the rest of a row is a segment of its own",
        num_segments=num_segments,
        has_rows=max_sequences is not None,  # else `cu_seqlens` varies, and rows of several batches do not stack
        build=partial(
            _build_megatron_lm,
            align=segment_multiple(context_parallel_size, tensor_parallel_size),
            num_segments=num_segments,
        ),
    )


def _build_megatron_lm(batch: PackedBatch, *, align: int, num_segments: int | None) -> dict[str, Any]:
    """Returns the keys of `megatron_lm_preset` for a batch."""
    layout = batch["layout"]
    check_segments(layout.extent_lengths, align)
    rows = [extents[extents > 0] for extents in row_extents(layout)]  # tokens of each row's segments
    most_segments = max(map(len, rows), default=0)
    max_seqlen = [int(segments.max()) for segments in rows]
    if num_segments is not None:
        if most_segments > num_segments:
            raise ValueError(
                f"a row has {most_segments} segments, more than max_sequences {num_segments - 1} and what is left of "
                "it; give it at least the plan's max_sequences_per_bin"
            )
        most_segments, max_seqlen = num_segments, [layout.row_tokens] * len(rows)
    cu_seqlens = np.full((layout.num_rows, 1 + most_segments), layout.row_tokens, dtype=np.int32)
    for offsets, segments in zip(cu_seqlens, rows, strict=True):
        offsets[0] = 0
        offsets[1 : len(segments) + 1] = segments.cumsum()
    return {
        "tokens": batch["input_ids"],
        "labels": batch["labels"],
        "loss_mask": (batch["labels"] != IGNORE_INDEX).float(),
        "position_ids": batch["position_ids"],
        "cu_seqlens": torch.from_numpy(cu_seqlens),
        "max_seqlen": torch.tensor(max_seqlen, dtype=torch.int32),
        "padding_mask": batch["attention_mask"] == 0,
    }
