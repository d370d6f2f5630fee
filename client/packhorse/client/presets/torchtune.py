"""The presets of torchtune's packed datasets, whose recipes shift labels in some versions.

Owns their keys, and which version of torchtune shifts labels. torchtune makes the mask.
"""

from typing import Any

import torch

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets._row_extents import row_extents
from packhorse.client.presets.preset import Preset


def torchtune_preset(*, shift_labels: bool = True) -> Preset:
    """Makes the preset of torchtune's `PackedDataset`.

    Legend: B rows, L tokens in a row. Keys: `tokens`, `labels` and `input_pos` int64 [B, L]; `seq_lens`, a list of B
    tensors int64 [segments of the row], each with the sum L. torchtune's collator replaces `seq_lens` by a mask:
    `batch["mask"] = packed_block_causal_mask(batch.pop("seq_lens"))`, which needs CUDA.

    Recipes up to 0.6.1, the version on PyPI, shift labels themselves; later ones (0.7 and the main branch) take shifted
    labels. With the wrong preset a model learns the token after the next, or to copy.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = torchtune_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["seq_lens"]
        [tensor([5, 3])]

    Args:
        shift_labels: False for torchtune up to 0.6.1; that preset is called `torchtune-0.6`.
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
    """Returns the keys of a batch. Positions of a row's padding continue after its last sequence, as torchtune's do."""
    layout = batch["layout"]
    input_pos = batch["position_ids"].clone()
    seq_lens = []
    for positions, lengths in zip(input_pos, row_extents(layout), strict=True):
        num_padding = int(lengths[-1])
        if 0 < num_padding < layout.row_tokens:
            positions[-num_padding:] += positions[-num_padding - 1] + 1
        seq_lens.append(torch.from_numpy(lengths[lengths > 0]))
    return {"tokens": batch["input_ids"], "labels": batch["labels"], "input_pos": input_pos, "seq_lens": seq_lens}
