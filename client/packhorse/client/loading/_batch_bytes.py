"""A batch as bytes and an outline, from which another process makes the batch again.

Owns the outline, and where each tensor's bytes are. Leaves memory that tensors share to `batches/tensor_memory`, and
sending to `peers`.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from packhorse.client.batches.tensor_memory import aligned_bytes, map_tensors, view_at

_Batch = TypeVar("_Batch")


def bytes_of(batch: Any, device: torch.device) -> torch.Tensor:
    """Returns the values of all tensors of a batch, one after the other, aligned: uint8 [bytes], on the device."""
    tensors = _tensors_of(batch)
    data = torch.empty(sum(map(aligned_bytes, tensors)), dtype=torch.uint8, device=device)
    for tensor, view in zip(tensors, _views(data, tensors), strict=True):
        view.copy_(tensor)
    return data


def outline_of(batch: _Batch) -> _Batch:
    """Returns a batch whose tensors have the same shapes and dtypes, but no values: they are on the device `meta`."""
    outline: _Batch = map_tensors(lambda tensor: torch.empty_like(tensor, device="meta"), batch)
    return outline


def filled(outline: _Batch, data: torch.Tensor) -> _Batch:
    """Returns the batch with this outline and these bytes. Its tensors are views of `data`."""
    views = _views(data, _tensors_of(outline))
    batch: _Batch = map_tensors(lambda _: next(views), outline)  # in the same order
    return batch


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    """Returns a batch's tensors, in the order of `map_tensors`."""
    tensors: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(take, batch)  # for its calls of `take`; the copy is not needed
    return tensors


def _views(data: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields for each tensor a view of its bytes in `data`, with its dtype and shape."""
    begin = 0
    for tensor in tensors:
        yield view_at(data, tensor.dtype, tensor.shape, begin)
        begin += aligned_bytes(tensor)
