"""torchtune's packed datasets.

Owns their keys, and which version of torchtune shifts labels; leaves the mask to torchtune.
"""

from typing import Any

import numpy as np
import torch

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.preset import Preset


def torchtune_preset(*, shift_labels: bool = True) -> Preset:
    """Makes the preset of torchtune's `PackedDataset`.

    Legend: B rows, L tokens in a row. Keys: `tokens`, `labels` and `input_pos` int64 [B, L]; `seq_lens`, a list of B
    tensors int64 [segments of the row], each with the sum L. torchtune's collator puts a mask instead of `seq_lens`:
    `batch["mask"] = packed_block_causal_mask(batch.pop("seq_lens"))`, which wants CUDA.

    Recipes changed sides: up to 0.6.1, which is what PyPI has, they shift labels themselves, later ones (0.7 and the
    main branch) take shifted ones. With the wrong preset a model learns the token after the next, or to copy.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = torchtune_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["seq_lens"]
        [tensor([5, 3])]

    Args:
        shift_labels: False for torchtune 0.6.1 and before; its preset is called `torchtune-0.6`.
    """
    return Preset(
        name="torchtune" if shift_labels else "torchtune-0.6",
        trainer=f"recipes of torchtune {'since 0.7 (main branch of 2026)' if shift_labels else 'up to 0.6.1'}",
        shift_labels=shift_labels,
        labels="shifted; -100 on the last token of each sequence and on padding"
        if shift_labels
        else "unshifted, since the recipe shifts them; -100 on the first token of each sequence and on padding",
        flatten=False,
        has_rows=True,
        padding="the last segment of its row; positions go on counting, labels -100",
        build=_build,
    )


def _build(batch: PackedBatch) -> dict[str, Any]:
    layout = batch["layout"]
    input_pos = batch["position_ids"].clone()
    row_ends = layout.row_ends + np.arange(1, layout.num_rows + 1)  # in runs: each row has one more, its padding
    seq_lens = []
    for positions, lengths in zip(input_pos, np.split(layout.extent_lengths, row_ends[:-1]), strict=False):
        num_padding = int(lengths[-1])
        if 0 < num_padding < layout.row_tokens:
            positions[-num_padding:] += positions[-num_padding - 1] + 1
        seq_lens.append(torch.from_numpy(lengths[lengths > 0]))
    return {"tokens": batch["input_ids"], "labels": batch["labels"], "input_pos": input_pos, "seq_lens": seq_lens}
