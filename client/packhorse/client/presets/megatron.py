"""The presets of Megatron: `megatron` for Transformer Engine's THD layout, `megatron-lm` for `pretrain_gpt.py`.

Owns their keys, the alignment that context parallelism and number formats need, and static shapes. Megatron itself
splits batches over ranks; the trainer's data iterators are in `trainers/megatron`.
"""

from functools import partial
from math import lcm
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.preset import Preset

_TOKENS_OF_RECIPE = {"bf16": 1, "delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32}
"""Recipe of a number format → the multiple that each rank's number of tokens must be."""


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
    align = megatron_alignment(context_parallel_size, tensor_parallel_size)
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


def megatron_alignment(context_parallel_size: int, tensor_parallel_size: int) -> int:
    """Returns the multiple of tokens that every segment must be.

    Raises:
        ValueError: a size is below 1.
    """
    sizes = {"context_parallel_size": context_parallel_size, "tensor_parallel_size": tensor_parallel_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if context_parallel_size == 1:
        return tensor_parallel_size
    return lcm(2 * context_parallel_size, context_parallel_size * tensor_parallel_size)


class Alignment(NamedTuple):
    """The multiples that parallelism and number format need."""

    sequence: int
    """Each sequence's room is a multiple of this many tokens: `prepare(align=…)`."""
    total: int
    """A batch's tokens are a multiple of this number: `total_multiple_of`, or rows with such a max_seq_len."""


def alignment_for(recipe: str = "bf16", tp: int = 1, cp: int = 1) -> Alignment:
    """Returns the multiples that each sequence, and the tokens of a batch, must have.

    Each sequence: context parallelism cuts it into 2·CP chunks, and sequence parallelism cuts a rank's part of it into
    TP (`get_thd_batch_on_this_cp_rank` and `thd_get_partitioned_indices`; SkyRL#2108). The number format does not
    matter here. The total: each rank's T / (CP·TP) tokens are a dimension of its matrix products, and must be a
    multiple of 16 for delayed and tensorwise scaling, of 128 for blockwise (NeMo-RL#1884, ms-swift#9722), and of 32 for
    MXFP8 (Megatron's `get_fp8_align_size`).

    Example:
        >>> alignment_for("blockwise")
        Alignment(sequence=1, total=128)
        >>> alignment_for("mxfp8", tp=2, cp=4)
        Alignment(sequence=8, total=256)

    Args:
        recipe: as Megatron's `--fp8-recipe`: `delayed`, `tensorwise`, `blockwise`, `mxfp8`; or `bf16`.
        tp: tensor-parallel ranks if sequence parallelism is used, otherwise 1.
        cp: context-parallel ranks.

    Raises:
        ValueError: the recipe is unknown, or a number is below 1.
    """
    if recipe not in _TOKENS_OF_RECIPE:
        raise ValueError(f"recipe must be one of {', '.join(_TOKENS_OF_RECIPE)}; got {recipe!r}")
    for name, value in (("tp", tp), ("cp", cp)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    sequence = megatron_alignment(cp, tp)
    return Alignment(sequence, lcm(sequence, tp * cp * _TOKENS_OF_RECIPE[recipe]))


def check_segments(segments: NDArray[np.int64], align: int) -> None:
    """Checks that context and tensor parallelism can divide every segment evenly.

    Args:
        segments: tokens of each segment: int64 [s].
        align: the multiple that each must be.

    Raises:
        ValueError: a segment is not a multiple; the text says how to prepare the dataset.
    """
    if (segments % align).any():
        raise ValueError(
            f"a segment of {segments[segments % align > 0][0]} tokens is not a multiple of {align}, as this context "
            f"and tensor parallelism needs; prepare the dataset with align={align} and a max_seq_len that is a multiple"
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


def megatron_lm_preset(
    *, context_parallel_size: int = 1, tensor_parallel_size: int = 1, max_sequences: int | None = None
) -> Preset:
    """Makes the preset of Megatron-LM's `pretrain_gpt.py` with `--sft` (packed sequences).

    Legend: B rows (the micro-batch), L tokens in a row, k segments in the row with the most. Keys: `tokens`, `labels`
    and `position_ids` int64 [B, L]; `loss_mask` float32 [B, L], 0 exactly where labels are -100; `cu_seqlens` int32
    [B, k + 1], the offsets of each row's segments, from 0 to L, with L repeated in rows of fewer segments; `max_seqlen`
    int32 [B]; `padding_mask` bool [B, L], True on padding, which `get_megatron_batch` passes on.

    Offsets include padding, as those that Megatron's own scheduler gives Transformer Engine. There are no offsets
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
        has_rows=max_sequences is not None,
        build=partial(
            _build_megatron_lm,
            align=megatron_alignment(context_parallel_size, tensor_parallel_size),
            num_segments=num_segments,
        ),
    )


def _build_megatron_lm(batch: PackedBatch, *, align: int, num_segments: int | None) -> dict[str, Any]:
    """Returns the keys of `megatron_lm_preset` for a batch."""
    layout = batch["layout"]
    check_segments(layout.extent_lengths, align)
    # Each row's exclusive end among the extents, of which it has one more than sequences: the rest of the row.
    row_ends = layout.row_ends + np.arange(1, layout.num_rows + 1)
    rows = [segments[segments > 0] for segments in np.split(layout.extent_lengths, row_ends[:-1])][: layout.num_rows]
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
