"""Hugging Face models with dense attention: one row for each bin, sequences found by their positions.

Owns these keys; leaves the form for FlashAttention, all sequences in one row, to `padding_free`.
"""

from functools import partial
from typing import Any

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.padding_free import UNSHIFTED, refuse_continued_positions
from packhorse.client.presets.preset import Preset


def rows_preset(*, return_padding_mask: bool = False) -> Preset:
    """Makes the preset for models of transformers with eager attention, SDPA or FlexAttention.

    Legend: B bins, L tokens in a row. Keys: `input_ids`, `labels` and `position_ids` int64 [B, L], `seq_idx` int32
    [B, L]. There is no `attention_mask`: such a model then makes a mask of its own for each row, from where positions
    do not go on by 1, and only while no cache is made: `use_cache=False`, as Hugging Face's trainers have it. Some
    models make none; `sees_other_sequences` tells.

    Attention costs B · L², where one row of all tokens costs (B · L)² unless FlashAttention skips what is masked.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2, seed=1, preset="rows")
        >>> batch = next(iter(dataset))
        >>> batch["input_ids"].shape, batch["position_ids"][0].tolist()
        (torch.Size([2, 8]), [0, 1, 2, 3, 4, 0, 1, 2])

    Args:
        return_padding_mask: whether there is `padding_mask` bool [B, L], True where there is no token: losses of
            experts leave that out. Models of transformers do not take it; pop it before you call one.
    """
    return Preset(
        name="rows",
        trainer="models of transformers (5.23) with eager, SDPA or FlexAttention; use_cache=False",
        shift_labels=False,
        labels=UNSHIFTED + " and on padding",
        flatten=False,
        has_rows=True,
        padding="a sequence of its own at the end of its row, its labels -100",
        build=partial(_build, return_padding_mask=return_padding_mask),
    )


def _build(batch: PackedBatch, *, return_padding_mask: bool) -> dict[str, Any]:
    refuse_continued_positions(batch)
    keys = {
        "input_ids": batch["input_ids"],
        "labels": batch["labels"],
        "position_ids": batch["position_ids"],
        "seq_idx": batch["sequence_ids"],
    }
    if return_padding_mask:
        keys["padding_mask"] = batch["attention_mask"] == 0
    return keys
