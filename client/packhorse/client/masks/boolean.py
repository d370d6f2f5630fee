"""Masks of booleans, as `scaled_dot_product_attention` takes them, and of labels.

Owns both; leaves writing blocks to `_host_blocks`, and the additive bias to `bias`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout, as_layout
from packhorse.client.masks._band import Band
from packhorse.client.masks._host_blocks import BlockWriter, allocate
from packhorse.client.masks.on_device import pairs_of_equals, segment_index, token_labels, with_prefixes
from packhorse.client.masks.prefixes import fill_prefixes, refuse_prefixes, refuse_window


def build_boolean_mask(
    where: PackLayout | Mapping[str, Any] | NDArray[np.integer] | torch.Tensor,
    device: torch.device | str,
    *,
    causal: bool,
    window: int | None = None,
    head_dim: bool = True,
    mask_padding: bool = False,
) -> torch.Tensor:
    """Builds the mask of which position may attend to which.

    Legend: B rows, L tokens in a row. On a GPU the host does not wait.

    Example:
        >>> cu_seqlens = np.array([0, 2, 3])  # sequences of 2 tokens and 1
        >>> build_boolean_mask(cu_seqlens, "cpu", causal=True, head_dim=False)
        tensor([[[ True, False, False],
                 [ True,  True, False],
                 [False, False,  True]]])

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where the mask is wanted.
        causal: whether a token sees none after it.
        window: tokens that a token sees on either side, itself included (|query − key| < window); None for all.
        head_dim: whether there is a dimension of size 1 for the heads.
        mask_padding: False: padding attends to itself, so that no row is all False and no softmax turns to NaN. True:
            padding attends to nothing and nothing to it, its own sequence's in a room with padding included; for
            kernels and losses that take such rows.

    Returns:
        bool [B, 1, L, L], or [B, L, L] without `head_dim`: query, then key; True where attention is allowed.

    Raises:
        ValueError: the window is below 1, or goes with shared prefixes, or there is no layout in `where`.
    """
    layout = as_layout(where)
    device = torch.device(device)
    band = Band.of(causal=causal, window=window)
    refuse_window(layout, window)
    if device.type == "cpu":
        mask = allocate((layout.num_rows, 1, layout.row_tokens, layout.row_tokens), torch.bool)
        starts, lengths = (
            (layout.starts, layout.lengths) if mask_padding else (layout.segments[:-1], np.diff(layout.segments))
        )
        BlockWriter(torch.bool, band, allowed=True, refused=False).write_all(mask, starts, lengths, is_zero=True)
        fill_prefixes(mask, layout, True)
    elif mask_padding:
        labels = token_labels(layout, device)
        mask = with_prefixes(pairs_of_equals(labels, band) & (labels != 0)[:, :, None], layout)[:, None]
    else:
        mask = with_prefixes(pairs_of_equals(segment_index(layout, device), band), layout)[:, None]
    return mask if head_dim else mask[:, 0]


def build_labelled_mask(
    where: PackLayout | Mapping[str, Any] | NDArray[np.integer] | torch.Tensor,
    device: torch.device | str,
    *,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Builds the mask that says which sequence a token belongs to: LLaMA-Factory's neat packing, JAX's segment ids.

    Example:
        >>> build_labelled_mask(PackLayout.of_rows(np.array([2, 1]), np.array([2]), 4), "cpu")
        tensor([[1, 1, 2, 0]])

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where the mask is wanted; a GPU is not waited for.
        dtype: integer type of the labels.

    Returns:
        `dtype` [B, L]: 1, 2, 3, … in each row for its sequences, 0 for padding, that in a sequence's room included.

    Raises:
        ValueError: there is no layout in `where`.
    """
    layout = as_layout(where)
    refuse_prefixes(layout, "a labelled mask")
    return token_labels(layout, torch.device(device)).to(dtype)


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
