"""Copies of batches to a device: `DeviceCopier`, whose copies to a GPU run while it computes.

Owns the CUDA stream of the copies, and when a batch's memory may be used again. Leaves when batches are fetched to
`prefetch`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Generic, NamedTuple, TypeVar

import torch

from packhorse.client.batches.tensor_memory import map_tensors

_Batch = TypeVar("_Batch")


class CopiedBatch(NamedTuple, Generic[_Batch]):
    """A batch on the device."""

    batch: _Batch
    """The batch, whose copies may still be going on."""
    event: torch.cuda.Event | None
    """The event after the last copy; None without CUDA."""


class DeviceCopier:
    """Copies batches to one device. A GPU copies while it computes for the trainer.

    Args:
        device: the device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def in_thread(self) -> AbstractContextManager[object]:
        """Returns the fetching thread's context: there copies, and the source's work on a GPU, are on one stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def copy(self, batch: _Batch) -> CopiedBatch[_Batch]:
        """Begins the copies of one batch, for the CPU none; called in the fetching thread, within `in_thread`."""
        if self._device.type == "cpu":
            return CopiedBatch(batch, None)
        moved: _Batch = map_tensors(self._copy_tensor, batch)
        return CopiedBatch(moved, None if self._stream is None else self._stream.record_event())

    def hand_out(self, copied: CopiedBatch[_Batch]) -> _Batch:
        """Makes the trainer's current stream wait for a batch, and keeps its memory until that stream is done."""
        if copied.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied.event)

            def record(tensor: torch.Tensor) -> torch.Tensor:
                tensor.record_stream(stream)
                return tensor

            map_tensors(record, copied.batch)
        return copied.batch

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begins the copy of one tensor: to a GPU through pinned memory, without waiting."""
        # PyTorch's cache reuses pinned memory only after the copies from it are done, so it may be dropped here.
        if self._stream is not None and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=self._stream is not None)


def chosen_device(device: torch.device | str | None) -> torch.device:
    """Returns the device with its index; None means the current CUDA device if there is one, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen
