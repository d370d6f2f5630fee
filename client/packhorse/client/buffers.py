"""Memory that batches are assembled into.

Owns where the memory lies (ordinary or pinned) and its reuse; leaves what is written there to `batch`.
"""

from typing import NamedTuple, Self

import torch


class BatchTensors(NamedTuple):
    """A batch's large tensors. Legend: B rows, L tokens in a row."""

    input_ids: torch.Tensor
    """int64 [B, L]."""
    labels: torch.Tensor
    """int64 [B, L]."""
    sequence_ids: torch.Tensor
    """int32 [B, L]."""
    position_ids: torch.Tensor
    """int64 [B, L]."""
    attention_mask: torch.Tensor
    """int64 [B, L]."""

    @classmethod
    def allocate(cls, num_rows: int, row_tokens: int, *, pin_memory: bool = False) -> Self:
        """Allocates tensors that hold anything yet.

        Args:
            num_rows: B.
            row_tokens: L.
            pin_memory: page-locked, for copies to a GPU that nothing waits for; needs CUDA. PyTorch keeps such memory
                for the next batches, and gives it out again only when the copies from it are done.
        """

        def empty(dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((num_rows, row_tokens), dtype=dtype, pin_memory=pin_memory)

        return cls(
            input_ids=empty(torch.int64),
            labels=empty(torch.int64),
            sequence_ids=empty(torch.int32),
            position_ids=empty(torch.int64),
            attention_mask=empty(torch.int64),
        )


class BatchBuffers:
    """Memory for one batch after the other, for whoever knows when the last one is no longer needed."""

    def __init__(self, num_tokens: int, *, pin_memory: bool = False) -> None:
        """Allocates it.

        Args:
            num_tokens: B·L of the largest batch.
            pin_memory: see `BatchTensors.allocate`.
        """
        self.num_tokens = num_tokens
        self._tensors = BatchTensors.allocate(1, num_tokens, pin_memory=pin_memory)

    def tensors(self, num_rows: int, row_tokens: int) -> BatchTensors:
        """Returns the tensors of a batch of B rows of L tokens, over the same memory each time.

        Raises:
            ValueError: they do not fit.
        """
        num_tokens = num_rows * row_tokens
        if num_tokens > self.num_tokens:
            raise ValueError(f"a batch of {num_tokens} tokens does not fit buffers for {self.num_tokens}")
        return BatchTensors(*(tensor[0, :num_tokens].view(num_rows, row_tokens) for tensor in self._tensors))
