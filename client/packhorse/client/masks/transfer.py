"""Copies from the host to a device without waiting, and the index of each token's segment or sequence on a device.

Owns these transfers and indices. Leaves offsets and segments to
`batches/layout`, and labels to `labelled`.

Legend: B rows, L tokens in a row, T = B·L tokens of all rows end to end.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a tensor on the device; copies to a GPU from pinned memory, so that the host need not wait."""
    is_to_gpu = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_to_gpu else tensor).to(device, non_blocking=is_to_gpu)


def transfer(arrays: Sequence[NDArray[np.integer]], device: torch.device) -> list[torch.Tensor]:
    """Copies small arrays to a device in one transfer.

    Returns:
        int32 tensors with the arrays' shapes. They are views of one new tensor.
    """
    sizes = [array.size for array in arrays]
    is_gpu = device.type == "cuda"
    host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=is_gpu)
    for part, array in zip(torch.split(host, sizes), arrays, strict=True):
        part.numpy()[:] = array.reshape(-1)
    parts = torch.split(host.to(device, non_blocking=is_gpu), sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def segment_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns the index of every token's segment in `layout.segments`: int32 [B, L]; it is unique over all rows."""
    lengths = np.diff(layout.segments)
    (index,) = transfer([np.repeat(np.arange(len(lengths)), lengths)], device)
    return index.view(layout.num_rows, layout.row_tokens)


def sequence_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns i + 1 for every token of sequence i and the padding after it, and 0 before the first: int32 [T]."""
    rooms = np.diff(layout.cu_seqlens_padded, prepend=0)
    (index,) = transfer([np.repeat(np.arange(len(rooms)), rooms)], device)
    return index
