"""The memory of a batch's large tensors: one allocation for each dtype, which may be pinned and reused.

Leaves the other keys of a batch, and sending it to another process, to `packed_batch`.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_NUM_INT64 = 4
"""Number of int64 tensors in `BatchTensors`, which are its first; the last is int32."""


class BatchTensors(NamedTuple):
    """A batch's large tensors. Legend: B rows, L tokens in a row.

    Example:
        >>> tensors, arrays = BatchBuffers(num_tokens=8).tensors(num_rows=2, row_tokens=4)
        >>> tensors.input_ids.shape, tensors.sequence_ids.dtype
        (torch.Size([2, 4]), torch.int32)
    """

    input_ids: torch.Tensor
    """Tokens: int64 [B, L]."""
    labels: torch.Tensor
    """Targets: int64 [B, L]."""
    position_ids: torch.Tensor
    """Positions: int64 [B, L]."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    sequence_ids: torch.Tensor
    """Numbers of the sequences in each row: int32 [B, L]."""


class BatchArrays(NamedTuple):
    """NumPy arrays over the memory of `BatchTensors`, each as one line: [B · L]."""

    input_ids: NDArray[np.int64]
    """Tokens."""
    labels: NDArray[np.int64]
    """Targets."""
    position_ids: NDArray[np.int64]
    """Positions."""
    attention_mask: NDArray[np.int64]
    """1 on tokens, 0 on padding."""
    sequence_ids: NDArray[np.int32]
    """Numbers of the sequences in each row."""


class BatchBuffers:
    """Memory that each batch reuses, for trainers that know when they no longer need the previous batch.

    Example:
        >>> buffers = BatchBuffers(num_tokens=8)
        >>> first, _ = buffers.tensors(num_rows=2, row_tokens=4)
        >>> second, _ = buffers.tensors(num_rows=1, row_tokens=4)
        >>> first.input_ids.data_ptr() == second.input_ids.data_ptr()  # the second batch is written over the first
        True
    """

    def __init__(self, num_tokens: int, *, pin_memory: bool = False) -> None:
        """Allocates the memory.

        Args:
            num_tokens: B·L of the largest batch.
            pin_memory: whether it is page-locked, for asynchronous copies to a GPU; needs CUDA. PyTorch itself waits
                for such copies before it reuses memory that was given up, but the next batch in these buffers does not.
        """
        self.num_tokens = num_tokens
        self._int64 = torch.empty(_NUM_INT64 * num_tokens, dtype=torch.int64, pin_memory=pin_memory)
        self._int32 = torch.empty(num_tokens, dtype=torch.int32, pin_memory=pin_memory)

    def __repr__(self) -> str:
        pinned = ", pinned" if self._int64.is_pinned() else ""
        return f"<BatchBuffers for {self.num_tokens:,} tokens{pinned}>"

    def tensors(self, num_rows: int, row_tokens: int) -> tuple[BatchTensors, BatchArrays]:
        """Returns the tensors of a batch of B rows of L tokens, over the same memory each time.

        Returns:
            The tensors, and NumPy arrays over the same memory.

        Raises:
            ValueError: the batch does not fit.
        """
        num_tokens = num_rows * row_tokens
        if num_tokens > self.num_tokens:
            raise ValueError(f"a batch of {num_tokens} tokens does not fit buffers for {self.num_tokens}")
        int64, int32 = self._int64, self._int32
        if num_tokens < self.num_tokens:
            int64, int32 = int64[: _NUM_INT64 * num_tokens], int32[:num_tokens]
        input_ids, labels, position_ids, attention_mask = int64.view(_NUM_INT64, num_rows, row_tokens).unbind()
        tensors = BatchTensors(
            input_ids=input_ids,
            labels=labels,
            position_ids=position_ids,
            attention_mask=attention_mask,
            sequence_ids=int32.view(num_rows, row_tokens),
        )
        return tensors, BatchArrays._make([*int64.numpy().reshape(_NUM_INT64, num_tokens), int32.numpy()])
