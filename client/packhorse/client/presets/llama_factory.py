"""LLaMA-Factory's neat packing.

Owns its keys; leaves the way from its labelled mask to a kernel to LLaMA-Factory.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad

from packhorse.client.batches.layout import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.row_format import check_token_id
from packhorse.client.presets.preset import Preset


def llama_factory_preset(*, pad_token_id: int = 0) -> Preset:
    """Makes the preset of LLaMA-Factory's rows with `neat_packing`.

    Legend: B rows, L = max_seq_len, which is LLaMA-Factory's `cutoff_len`. Keys, all int64 [B, L + 1]: `input_ids`,
    `labels`; `attention_mask`, which is 1 on the first sequence of a row, 2 on the second, …, 0 on padding; and
    `position_ids`, 0 on padding. Every row ends with a token of padding more, as LLaMA-Factory's do: where a row has
    none, FlashAttention's path drops the mask, and all sequences see each other.

    Its collator turns `attention_mask` into a mask of four dimensions (`prepare_4d_attention_mask`), or strips padding
    for FlashAttention.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = llama_factory_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["attention_mask"].tolist()
        [[1, 1, 1, 1, 1, 2, 2, 2, 0]]

    Args:
        pad_token_id: the token at the end of every row; the same as of the dataset.

    Raises:
        ValueError: `pad_token_id` is not a token id.
    """
    check_token_id("pad_token_id", pad_token_id)
    return Preset(
        name="llama-factory",
        trainer="supervised stage of LLaMA-Factory (0.9.5) with neat_packing, in front of its collator",
        shift_labels=False,
        labels="unshifted, since the model shifts them; -100 on the first token of each sequence and on padding",
        flatten=False,
        has_rows=True,
        padding="at least one token in each row; attention_mask and positions 0, labels -100",
        build=partial(_build, pad_token_id=pad_token_id),
    )


def _build(batch: PackedBatch, *, pad_token_id: int) -> dict[str, Any]:
    is_token = batch["attention_mask"]
    return {
        "input_ids": _with_end(batch["input_ids"], pad_token_id),
        "labels": _with_end(batch["labels"], IGNORE_INDEX),
        "attention_mask": _with_end((batch["sequence_ids"] + 1) * is_token, 0),
        "position_ids": _with_end(batch["position_ids"] * is_token, 0),
    }


def _with_end(rows: torch.Tensor, value: int) -> torch.Tensor:
    return pad(rows, (0, 1), value=value)
