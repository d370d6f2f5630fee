"""The tensors of a batch, one by one or side by side in one block of memory.

Owns going through them (`map_tensors`), and where each lies in memory that several share (`aligned_bytes`, `view_at`).
Leaves the batch and its pickling to `packed_batch`, and the tensors that a batch is assembled in to `buffers`.
"""

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

_ALIGNMENT_BYTES = 64
"""Tensors that share memory begin at multiples of this; a view needs a multiple of its dtype's size."""


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Returns a copy of the value in which `function` has replaced every tensor, also in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, MutableMapping):
        mapped = copy.copy(value)
        for key, item in value.items():
            mapped[key] = map_tensors(function, item)
        return mapped
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # a NamedTuple takes items one by one
    return value


def aligned_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes that a tensor takes in memory that several tensors share, rounded up to the alignment."""
    num_units = -(-tensor.nbytes // _ALIGNMENT_BYTES)  # rounded up
    return num_units * _ALIGNMENT_BYTES


def view_at(memory: torch.Tensor, dtype: torch.dtype, shape: torch.Size, start: int) -> torch.Tensor:
    """Returns the tensor that begins at byte `start` of memory, uint8 [bytes]: a view."""
    return memory[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
