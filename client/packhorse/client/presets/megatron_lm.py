"""What Megatron-LM's own `get_batch` reads from a data iterator.

Owns the keys and shapes that its broadcast allocates for; leaves alignment to `megatron`, whose batches are for a
training loop of one's own, and the split over ranks to Megatron.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.targets import IGNORE_INDEX
from packhorse.client.presets.megatron import check_segments, megatron_alignment
from packhorse.client.presets.preset import Preset


def megatron_lm_preset(*, context_parallel_size: int = 1, tensor_parallel_size: int = 1) -> Preset:
    """Makes the preset of Megatron-LM's `pretrain_gpt.py` with `--sft` (packed sequences).

    Legend: B rows (the micro-batch), L tokens in a row. Keys: `tokens`, `labels` and `position_ids` int64 [B, L];
    `loss_mask` float32 [B, L], 0 exactly where labels are -100; `cu_seqlens` int32 [B, k + 1], for each row where its
    segments lie, from 0 to L, and L again up to the row with the most of them; `max_seqlen` int32 [B].

    Offsets count padding in, as Megatron's own scheduler has them for Transformer Engine. There are no unpadded ones
    beside them: without context parallelism Megatron sends only one kind to tensor-parallel peers, and each rank would
    compute with another.

    Context parallelism needs segments that are multiples, as in `megatron_preset`.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = megatron_lm_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["tokens"].shape, batch["cu_seqlens"].tolist(), batch["max_seqlen"].tolist()
        (torch.Size([2, 8]), [[0, 5, 8], [0, 5, 8]], [5, 5])

    Args:
        context_parallel_size: CP.
        tensor_parallel_size: TP where sequence parallelism is used, else 1.

    Raises:
        ValueError: a number is below 1.
    """
    return Preset(
        name="megatron-lm",
        trainer="get_batch of Megatron-LM (core 0.16 to 0.20) with --sft",
        shift_labels=True,
        labels="shifted; -100, and loss_mask 0, on the last token of each sequence and on padding",
        flatten=False,
        padding="in the offsets; the rest of a row is a segment of its own",
        build=partial(_build, align=megatron_alignment(context_parallel_size, tensor_parallel_size)),
    )


def _build(batch: PackedBatch, *, align: int) -> dict[str, Any]:
    layout = batch["layout"]
    check_segments(layout.extent_lengths, align)
    row_ends = layout.row_ends + np.arange(1, layout.num_rows + 1)  # in runs: each row has one more, what is left of it
    rows = [segments[segments > 0] for segments in np.split(layout.extent_lengths, row_ends[:-1])][: layout.num_rows]
    cu_seqlens = np.full((layout.num_rows, 1 + max(map(len, rows), default=0)), layout.row_tokens, dtype=np.int32)
    for offsets, segments in zip(cu_seqlens, rows, strict=True):
        offsets[0] = 0
        offsets[1 : len(segments) + 1] = segments.cumsum()
    return {
        "tokens": batch["input_ids"],
        "labels": batch["labels"],
        "loss_mask": (batch["labels"] != IGNORE_INDEX).float(),
        "position_ids": batch["position_ids"],
        "cu_seqlens": torch.from_numpy(cu_seqlens),
        "max_seqlen": torch.tensor([int(segments.max()) for segments in rows], dtype=torch.int32),
    }
