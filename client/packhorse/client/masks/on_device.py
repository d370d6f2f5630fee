"""Offsets of a layout, copied to a device without waiting for it.

Owns transfers and the per-token tensors that follow from them; leaves offsets to `batches/layout` and the rules of
attention to `visibility`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks.visibility import Band, prefix_blocks


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Starts a transfer; to a GPU from pinned memory, so that the host need not wait for its end."""
    is_to_gpu = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_to_gpu else tensor).to(device, non_blocking=is_to_gpu)


def transfer(arrays: Sequence[NDArray[np.integer]], device: torch.device) -> list[torch.Tensor]:
    """Brings small arrays to a device in one transfer.

    Returns:
        int32 tensors with the arrays' shapes, in one piece of memory that nothing else uses.
    """
    sizes = [array.size for array in arrays]
    is_gpu = device.type == "cuda"
    host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=is_gpu)
    for part, array in zip(torch.split(host, sizes), arrays, strict=True):
        part.numpy()[:] = array.reshape(-1)
    parts = torch.split(host.to(device, non_blocking=is_gpu), sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def segment_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns every token's index into `layout.segments`: int32 [B, L]; no two rows share one."""
    lengths = np.diff(layout.segments)
    (index,) = transfer([np.repeat(np.arange(len(lengths)), lengths)], device)
    return index.view(layout.num_rows, layout.row_tokens)


def sequence_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns i + 1 for every token of sequence i and the padding after it, and 0 before the first: int32 [T]."""
    rooms = np.diff(layout.cu_seqlens_padded, prepend=0)
    (index,) = transfer([np.repeat(np.arange(len(rooms)), rooms)], device)
    return index


def token_labels(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns 1, 2, 3, … for the sequences of each row, and 0 for padding of either kind: int32 [B, L]."""
    num_tokens = layout.num_rows * layout.row_tokens
    # Padding, sequence, padding, sequence, …, padding: any of them may be empty.
    bounds = np.stack([layout.starts, layout.starts + layout.lengths], axis=1).reshape(-1)
    rests = layout.row_ends + np.arange(layout.num_rows)
    of_bounds = np.zeros(len(bounds) + 1, dtype=np.int32)
    of_bounds[1::2] = np.delete(layout.extent_labels, rests) + 1
    (labels,) = transfer([np.repeat(of_bounds, np.diff(bounds, prepend=0, append=num_tokens))], device)
    return labels.view(layout.num_rows, layout.row_tokens)


def prefix_bounds(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns the prefix that every token sees, as its first token in the row and its end: int32 [2, B, L].

    Both are 0 for a token that sees none.
    """
    bounds = np.zeros((2, layout.num_rows, layout.row_tokens), dtype=np.int32)
    for row, queries, keys in prefix_blocks(layout):
        bounds[:, row, queries] = np.array([[keys.start], [keys.stop]])
    (on_device,) = transfer([bounds], device)
    return on_device


def with_prefixes(pairs: torch.Tensor, layout: PackLayout) -> torch.Tensor:
    """Adds the pairs of sequences and the prefixes that they see: bool [B, L, L], query, then key."""
    if not layout.shared_prefix:
        return pairs
    firsts, ends = prefix_bounds(layout, pairs.device)[..., None]
    keys = torch.arange(layout.row_tokens, dtype=torch.int32, device=pairs.device)
    return pairs | ((keys >= firsts) & (keys < ends))


def pairs_of_equals(labels: torch.Tensor, band: Band) -> torch.Tensor:
    """Returns which positions of a row have equal labels, integers [B, L], at an allowed distance.

    Returns:
        bool [B, L, L]: query, then key.
    """
    pairs = labels[:, :, None] == labels[:, None, :]
    if band.least is not None:
        pairs.tril_(-band.least)
    if band.most is not None:
        pairs.triu_(-band.most)
    return pairs
