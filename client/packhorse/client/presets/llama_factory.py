"""The preset of LLaMA-Factory's neat packing: rows with a labelled mask.

Owns its keys. LLaMA-Factory makes the mask of its attention kernel from the labelled mask. A labelled mask by itself is
in `masks/labelled`.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad

from packhorse.client.batches.labels import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.row_format import check_token_id
from packhorse.client.presets.preset import Preset


def llama_factory_preset(*, pad_token_id: int = 0) -> Preset:
    """Makes the preset of LLaMA-Factory's rows with `neat_packing`.

    Legend: B rows, L = max_seq_len, which is LLaMA-Factory's `cutoff_len`. Keys, all int64 [B, L + 1]: `input_ids`,
    `labels`; `attention_mask`, which is 1 on the first sequence of a row, 2 on the second, …, 0 on padding; and
    `position_ids`, 0 on padding. Every row has one more token of padding at its end, as LLaMA-Factory's rows have: if a
    row had no padding, LLaMA-Factory's path for FlashAttention would drop the mask, and all sequences would see each
    other.

    LLaMA-Factory's collator turns `attention_mask` into a mask of four dimensions (`prepare_4d_attention_mask`), or
    takes padding out for FlashAttention.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = llama_factory_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["attention_mask"].tolist()
        [[1, 1, 1, 1, 1, 2, 2, 2, 0]]

    Args:
        pad_token_id: the token at the end of every row; give the same to the dataset.

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
    """Returns rows [B, L + 1] of rows [B, L], with a value at the end of each."""
    return pad(rows, (0, 1), value=value)  # none before, one after
