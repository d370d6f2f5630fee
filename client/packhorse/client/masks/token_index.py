"""The index of each token's segment, and the number of its sequence, on a device; both are unique over all rows.

A segment is a sequence, or a range of padding. Masks compare the indices of a row's segments with each other, so these
come row by row, [B, L]. Losses add up values of all tokens by their sequence's number, so these come end to end, [T];
they begin with 1, and 0 is before the first.
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
    # Tokens with each number, 0 first: from token 0 to the first sequence, from there to the second, and so on. With
    # cu_seqlens_padded [1, 3, 8] they are [1, 2, 5].
    num_tokens_of = np.diff(layout.cu_seqlens_padded, prepend=0)
    (index,) = transfer([np.repeat(np.arange(len(num_tokens_of)), num_tokens_of)], device)
    return index
