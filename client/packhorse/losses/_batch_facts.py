"""What losses read of a batch, whether it is packed rows or trees: its sequences, their targets, their groups' ids.

Owns telling the two kinds apart, and checking a tensor's shape against the rows. Leaves numbering groups to `groups`,
and counting over micro-batches to `counts`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import PackLayout, as_layout
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.masks.transfer import transfer


def is_of_trees(batch: Mapping[str, Any]) -> bool:
    """Returns whether a batch is of trees, in which a token may be of several sequences."""
    return "sequence_index" in batch


def num_sequences_of(batch: Mapping[str, Any]) -> int:
    """Returns the number of a batch's sequences."""
    return len(batch["ids"]) if is_of_trees(batch) else layout_of(batch).num_sequences


def layout_of(batch: Mapping[str, Any]) -> PackLayout:
    """Returns the layout of packed rows, or makes it from offsets, as batches of some presets have them.

    Raises:
        ValueError: the batch has neither.
    """
    if "layout" in batch:
        return as_layout(batch)
    if "cu_seq_lens_q" in batch:  # as the preset of transformers names the offsets
        return as_layout(batch["cu_seq_lens_q"])
    raise ValueError(
        "this batch carries no 'layout', as those of most presets do not: count and weigh it before the preset, with "
        "LossCounts.of_batch(batch) and build_loss_weights(batch), then get_preset(name).convert(batch)"
    )


def target_counts_of(batch: Mapping[str, Any]) -> torch.Tensor:
    """Returns the number of targets of every sequence, on the labels' device: int64 [n]."""
    if is_of_trees(batch):
        sequence_of_target = batch["sequence_index"]  # of trees: int64, one entry for each target
        num_targets = sequence_of_target.new_zeros(num_sequences_of(batch))
        return num_targets.index_add_(0, sequence_of_target, torch.ones_like(sequence_of_target))
    layout = layout_of(batch)
    labels = batch["labels"]
    check_shape("labels", labels, layout)
    # Shifted or not, a sequence's targets are at positions of its own tokens, so a difference of sums counts them.
    num_before = torch.nn.functional.pad((labels != IGNORE_INDEX).flatten().cumsum(0), (1, 0))
    starts, ends = transfer([layout.starts, layout.starts + layout.lengths], labels.device)
    return num_before[ends] - num_before[starts]


def group_ids_of(batch: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Returns the id of every sequence's group: int64 [n], negative for none; None if the batch has no groups."""
    if is_of_trees(batch):
        return batch["group_ids"].cpu().numpy() if "group_ids" in batch else None
    return layout_of(batch).group_ids


def check_shape(name: str, values: torch.Tensor, layout: PackLayout) -> None:
    """Checks that a tensor has one entry for each token of a layout.

    Raises:
        ValueError: it has another shape; the message names the tensor and both shapes.
    """
    if values.shape != (layout.num_rows, layout.row_tokens):
        raise ValueError(
            f"{name} have shape {list(values.shape)}, and the batch's layout has {layout.num_rows} rows of "
            f"{layout.row_tokens} tokens; give one value for each token"
        )
