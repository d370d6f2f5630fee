"""The index of each token's segment, and the number of its sequence, on a device; both are unique over all rows.

Masks compare indices of segments. Losses add up by numbers of sequences, which begin with 1: 0 is before the first.
Leaves the offsets that they follow from to `batches/layout`, and numbers that begin anew in each row to `labelled`.

Legend: B rows, L tokens in a row, T = B·L tokens of all rows end to end.
"""

import numpy as np
import torch

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks.transfer import transfer


def segment_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns the index of every token's segment in `layout.segments`: int32 [B, L]."""
    lengths = np.diff(layout.segments)
    (index,) = transfer([np.repeat(np.arange(len(lengths)), lengths)], device)
    return index.view(layout.num_rows, layout.row_tokens)


def sequence_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns i + 1 for every token of sequence i and the padding after it, and 0 before the first: int32 [T]."""
    rooms = np.diff(layout.cu_seqlens_padded, prepend=0)  # the first is the tokens before sequence 0
    (index,) = transfer([np.repeat(np.arange(len(rooms)), rooms)], device)
    return index
