"""The labelled mask, which gives each token the number of its sequence in the row.

Owns labels that are made from a layout. Leaves labels that users give to `_given_labels` and `label_offsets`.
"""

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, PackLayout, as_layout
from packhorse.client.masks.prefixes import refuse_prefixes
from packhorse.client.masks.transfer import transfer


def token_labels(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns 1, 2, 3, … for the sequences of each row, and 0 for padding in rooms and after them: int32 [B, L]."""
    num_tokens = layout.num_rows * layout.row_tokens
    # These bounds cut all tokens into parts: padding, sequence, padding, sequence, …, padding; some may be empty.
    bounds = np.stack([layout.starts, layout.starts + layout.lengths], axis=1).reshape(-1)
    label_of_part = np.zeros(len(bounds) + 1, dtype=np.int32)
    # The extents of a row are the rooms of its sequences and then the rest of the row, which is no sequence.
    rests = layout.row_ends + np.arange(layout.num_rows)
    label_of_part[1::2] = np.delete(layout.extent_labels, rests) + 1
    (labels,) = transfer([np.repeat(label_of_part, np.diff(bounds, prepend=0, append=num_tokens))], device)
    return labels.view(layout.num_rows, layout.row_tokens)


def build_labelled_mask(
    where: LayoutLike, device: torch.device | str, *, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Builds the mask that numbers each token's sequence: LLaMA-Factory's neat packing, JAX's segment ids.

    Example:
        >>> build_labelled_mask(PackLayout.of_rows(np.array([2, 1]), np.array([2]), 4), "cpu")
        tensor([[1, 1, 2, 0]])

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: device of the mask; the host does not wait for a GPU.
        dtype: integer type of the labels.

    Returns:
        `dtype` [B, L]: 1, 2, 3, … for the sequences of each row, 0 for padding, also for padding in a sequence's room.

    Raises:
        ValueError: there is no layout in `where`, or its groups share prefixes.
    """
    layout = as_layout(where)
    refuse_prefixes(layout, "a labelled mask")
    return token_labels(layout, torch.device(device)).to(dtype)
