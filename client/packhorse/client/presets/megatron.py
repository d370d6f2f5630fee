"""Preset `megatron`: the keys of Megatron-LM and Transformer Engine for the THD layout, and their static shapes.

Leaves the alignment that segments need to `megatron_alignment`, and Megatron-LM's own script to `megatron_lm`. Megatron
itself splits batches over ranks; the trainer's data iterators are in `trainers/megatron`.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.labels import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.megatron_alignment import check_segments, segment_multiple
from packhorse.client.presets.preset import Preset


def megatron_preset(
    *, context_parallel_size: int = 1, tensor_parallel_size: int = 1, num_sequences: int | None = None
) -> Preset:
    """Makes the preset of Megatron-LM and Transformer Engine for `qkv_format="thd"`.

    Legend: T tokens, the rows of a batch end to end, the same at every step; s segments: the rooms of sequences and the
    rest of each row. Keys: `tokens`, `labels` and `position_ids` int64 [1, T]; `loss_mask` float32 [1, T]; and the
    fields of `PackedSeqParams`: `qkv_format`; `cu_seqlens_q_padded` and `cu_seqlens_kv_padded` int32 [s + 1], the
    segments' offsets with padding, from 0 to T; `cu_seqlens_q` and `cu_seqlens_kv` int32 [s + 1], the offsets of the
    segments' tokens without padding; `max_seqlen_q` and `max_seqlen_kv` int; and `padding_mask` bool [1, T], True on
    padding, which GPTModel takes so that experts do not see padding.

    The rest of a row is a segment that holds 0 tokens, so that it is not a part of the last sequence. `max_seqlen`
    includes padding, because Megatron's own scheduler gives Transformer Engine the padded offsets as both kinds. The
    loss mask is 0 exactly where labels are -100.

    Context parallelism cuts each segment into 2·CP chunks and gives every rank two. Sequence parallelism cuts a rank's
    tokens into TP parts. So segments must be multiples of lcm(2·CP, CP·TP), or of TP with CP = 1. Prepare the dataset
    with `--align` of that number and a `max_seq_len` that is a multiple of it.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = megatron_preset(num_sequences=4)
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["cu_seqlens_q"].tolist()
        [0, 5, 8, 8, 8]

    Args:
        context_parallel_size: CP, the ranks that share a sequence.
        tensor_parallel_size: TP, the tensor-parallel ranks, if sequence parallelism is used; else 1.
        num_sequences: number of segments in every batch, for CUDA graphs: the last offset is repeated, and `max_seqlen`
            is max_seq_len. At least bins · (sequences in a bin + 1), which is checked before the first batch. None: the
            number varies.

    Raises:
        ValueError: a number is below 1.
    """
    if num_sequences is not None and num_sequences < 1:
        raise ValueError(f"num_sequences must be at least 1, got {num_sequences}")
    align = segment_multiple(context_parallel_size, tensor_parallel_size)
    return Preset(
        name="megatron",
        trainer="Megatron-LM (core 0.16) with Transformer Engine's THD layout",
        shift_labels=True,
        labels="shifted; -100, and loss_mask 0, on the last token of each sequence and on padding",
        flatten=False,
        padding="counted only by the padded offsets; the rest of a row is a segment that holds 0 tokens",
        num_segments=num_sequences,
        build=partial(_build_megatron, align=align, num_sequences=num_sequences),
    )


def _build_megatron(batch: PackedBatch, *, align: int, num_sequences: int | None) -> dict[str, Any]:
    """Returns the keys of `megatron_preset` for a batch."""
    layout = batch["layout"]
    is_segment = layout.extent_lengths > 0
    segments = layout.extent_lengths[is_segment]  # tokens of each segment, with padding: [s]
    lengths = np.insert(layout.lengths, layout.row_ends, 0)[is_segment]  # without padding; 0 for a row's rest: [s]
    check_segments(segments, align)
    max_seqlen = int(segments.max(initial=0))
    if num_sequences is not None:
        if len(segments) > num_sequences:
            raise ValueError(
                f"the batch has {len(segments)} segments, more than num_sequences {num_sequences}; give it at least "
                "bins · (sequences in a bin + 1), and plan with max_sequences_per_bin"
            )
        num_empty = num_sequences - len(segments)
        segments, lengths = np.pad(segments, (0, num_empty)), np.pad(lengths, (0, num_empty))
        max_seqlen = layout.row_tokens
    cu_seqlens, cu_seqlens_padded = _offsets(lengths), _offsets(segments)
    labels = batch["labels"].view(1, -1)
    return {
        "tokens": batch["input_ids"].view(1, -1),
        "labels": labels,
        "loss_mask": (labels != IGNORE_INDEX).float(),
        "position_ids": batch["position_ids"].view(1, -1),
        "qkv_format": "thd",
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_kv": cu_seqlens,
        "cu_seqlens_q_padded": cu_seqlens_padded,
        "cu_seqlens_kv_padded": cu_seqlens_padded,
        "max_seqlen_q": max_seqlen,
        "max_seqlen_kv": max_seqlen,
        "padding_mask": batch["attention_mask"].view(1, -1) == 0,
    }


def _offsets(lengths: NDArray[np.int64]) -> torch.Tensor:
    """Returns the running sums of lengths [s], from 0: int32 [s + 1]."""
    return torch.from_numpy(np.cumsum(np.insert(lengths, 0, 0), dtype=np.int32))
