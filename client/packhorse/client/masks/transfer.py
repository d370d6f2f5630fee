"""Copies from the host to a device without waiting: of one tensor, or of several small arrays in one transfer.

Leaves the index of each token's segment, which is copied so, to `token_index`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a tensor on the device; copies to a GPU from pinned memory, so that the host need not wait."""
    is_to_gpu = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_to_gpu else tensor).to(device, non_blocking=is_to_gpu)


def transfer(arrays: Sequence[NDArray[np.integer]], device: torch.device) -> list[torch.Tensor]:
    """Copies small arrays of numbers that fit int32 to a device in one transfer.

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
