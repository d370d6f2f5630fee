"""The layout of labels that users give instead of a batch: `layout_or_labels`.

Leaves the offsets of such labels to `label_offsets`, and labels that are made from a layout to `labelled`.

Legend: B rows, L tokens in a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from packhorse.client.batches.layout import PackLayout, as_layout
from packhorse.client.masks.label_offsets import as_rows


def layout_or_labels(where: PackLayout | Mapping[str, Any] | torch.Tensor) -> PackLayout | torch.Tensor:
    """Returns the layout of a batch, or of labels in host memory if they have one; otherwise the labels, [B, L]."""
    if not isinstance(where, torch.Tensor):
        return as_layout(where)
    labels = as_rows("sequence_ids", where)
    layout = _layout_of_labels(labels) if labels.device.type == "cpu" else None
    return labels if layout is None else layout


def _layout_of_labels(labels: torch.Tensor) -> PackLayout | None:
    """Returns a layout without padding, whose sequences are the ranges of equal labels in a row.

    Returns None without any label, or if two ranges of a row have the same label, which no layout can express.

    Args:
        labels: integers [B, L], in host memory.
    """
    rows = labels.numpy()
    if rows.size == 0:
        return None
    is_first = np.ones(rows.shape, dtype=np.bool_)
    is_first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = np.flatnonzero(is_first)
    row_ends = np.cumsum(is_first.sum(axis=1))  # of each row among the ranges
    range_rows, range_labels = starts // rows.shape[1], rows.reshape(-1)[starts]
    # Sorted by row, then label: a label that comes twice in a row has neighbours that are equal in both.
    order = np.lexsort((range_labels, range_rows))
    is_repeated = (np.diff(range_rows[order]) == 0) & (np.diff(range_labels[order]) == 0)
    if is_repeated.any():
        return None
    return PackLayout.of_rows(np.diff(starts, append=rows.size), row_ends, rows.shape[1])
