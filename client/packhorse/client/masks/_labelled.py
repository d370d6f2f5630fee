"""Labels of positions (`sequence_ids`), where offsets are not known.

Owns reading segments off labels in host memory; leaves offsets known from the plan, which cost nothing, to `layout`.
"""

import numpy as np
import torch

from packhorse.client.batches.layout import PackLayout


def as_rows(name: str, labels: torch.Tensor) -> torch.Tensor:
    """Makes [B, L] of [L].

    Raises:
        ValueError: they have another shape.
    """
    if labels.dim() == 1:
        return labels.unsqueeze(0)
    if labels.dim() != 2:
        raise ValueError(f"{name} must have shape [B, L] or [L], got {list(labels.shape)}")
    return labels


def layout_of_labels(labels: torch.Tensor) -> PackLayout | None:
    """Reads the segments off labels in host memory.

    Args:
        labels: integers [B, L].

    Returns:
        A layout without padding whose segments are the ranges of equal labels; None where a row has two ranges of one
        label, which no layout says.
    """
    rows = labels.numpy()
    if rows.size == 0:
        return None
    is_first = np.ones(rows.shape, dtype=np.bool_)
    is_first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = np.flatnonzero(is_first)
    row_ends = np.cumsum(is_first.sum(axis=1))
    rows_of, of_runs = starts // rows.shape[1], rows.reshape(-1)[starts]
    order = np.lexsort((of_runs, rows_of))
    is_again = (np.diff(rows_of[order]) == 0) & (np.diff(of_runs[order]) == 0)
    if is_again.any():
        return None
    return PackLayout.of_rows(np.diff(starts, append=rows.size), row_ends, rows.shape[1])
