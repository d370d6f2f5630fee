"""Batches that cross from a dataloader worker to the trainer as one piece of shared memory.

PyTorch sends every tensor by a file descriptor of its own, and each costs the trainer more time than all tokens
together. Owns that crossing; leaves what is in a batch to `batch` and `presets`.
"""

from collections.abc import Callable
from typing import Any, Self

import torch

from packhorse.client.seeing._dict import SeenDict

_ALIGNMENT_BYTES = 64


class Parcel(SeenDict):
    """A dict whose tensors are laid into one shared memory when it is pickled, and then are views of it."""

    def __copy__(self) -> Self:
        return type(self)(self)

    def __reduce__(self) -> tuple[Callable[..., "Parcel"], tuple[Any, ...]]:
        is_laid = {name: isinstance(value, torch.Tensor) and value.device.type == "cpu" for name, value in self.items()}
        places: list[tuple[str, torch.dtype, torch.Size, int]] = []
        num_bytes = 0
        for name, value in self.items():
            if is_laid[name]:
                places.append((name, value.dtype, value.shape, num_bytes))
                num_bytes += -(-value.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        if num_bytes:
            memory = memory.share_memory_()  # type: ignore[no-untyped-call]
        for name, dtype, shape, start in places:
            _view(memory, dtype, shape, start).copy_(self[name])
        rest = {name: None if is_laid[name] else value for name, value in self.items()}
        return _open, (memory, places, rest)


def _open(memory: torch.Tensor, places: list[tuple[str, torch.dtype, torch.Size, int]], rest: dict[str, Any]) -> Parcel:
    parcel = Parcel(rest)
    for name, dtype, shape, start in places:
        parcel[name] = _view(memory, dtype, shape, start)
    return parcel


def _view(memory: torch.Tensor, dtype: torch.dtype, shape: torch.Size, start: int) -> torch.Tensor:
    return memory[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
