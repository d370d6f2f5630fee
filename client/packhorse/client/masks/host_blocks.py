"""Dense masks in host memory, written block by block.

Owns fresh memory and the writing of one block for each segment; leaves what the values mean to `bias` and `boolean`.
"""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.masks.band import Band

_HUGE_PAGE_BYTES = 2 << 20


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Takes fresh host memory, in huge pages where the system has them.

    Dense masks are so large that the allocator asks the system for each anew, and then half of the time goes into
    faults, one for every 4 KiB that is first touched.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # A kernel built without them.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class BlockWriter:
    """Writes one value inside segments and another outside.

    Inside, allowed pairs depend on the distance alone, so every block is a corner of one matrix, and each row of that a
    slice of one line: nothing is computed for a block, and what is copied from lies in the processor's first cache.
    """

    def __init__(self, dtype: torch.dtype, band: Band, *, allowed: float, refused: float) -> None:
        self._band = band
        # Bits are copied, whatever they mean: NumPy has no bfloat16.
        self._bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        values = torch.tensor([allowed, refused], dtype=dtype)
        self._allowed, self._refused = values.view(self._bits).numpy()

    def write(self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Writes the blocks of some tokens.

        Args:
            mask: contiguous [B, 1, L, L] in host memory.
            starts: index in B·L of each segment's first token: integers [k].
            lengths: tokens of each: integers [k]; none crosses into the next row.
        """
        corner = self._corner(int(lengths.max(initial=0)))
        for block, length in self._blocks(mask, starts, lengths):
            block[:] = corner[:length, :length]

    def clear(self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Takes back what `write` wrote."""
        for block, _ in self._blocks(mask, starts, lengths):
            block[:] = self._refused

    def _blocks(
        self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer]
    ) -> list[tuple[NDArray[Any], int]]:
        row_tokens = mask.shape[-1]
        rows = mask.view(self._bits).numpy()[:, 0]
        rows_of, firsts = np.divmod(starts, row_tokens)
        return [
            (rows[row, first : first + length, first : first + length], length)
            for row, first, length in zip(rows_of.tolist(), firsts.tolist(), lengths.tolist(), strict=True)
        ]

    def _corner(self, size: int) -> NDArray[Any]:
        """The block of a segment of so many tokens, [size, size]; its corners are those of shorter ones."""
        if size == 0:
            return np.empty((0, 0), dtype=self._allowed.dtype)
        line = np.where(self._band.allows(np.arange(size - 1, -size, -1)), self._allowed, self._refused)
        return np.lib.stride_tricks.sliding_window_view(line, size)[::-1]
