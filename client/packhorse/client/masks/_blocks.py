"""Writes dense masks in host memory: each segment's block once, by several threads if the mask is large.

Owns the memory, in huge pages, and how values are copied into it. Leaves which values a mask has to `dense`, and
allowed distances to `_band`.

Legend: B rows, L tokens in a row, k segments.
"""

import contextlib
import math
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.masks._band import Band

_HUGE_PAGE_BYTES = 2 << 20
"""Size of a huge page; smaller masks get normal pages."""
_BYTES_FOR_THREADS = 8 << 20
"""Size from which several threads write a mask."""


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns new host memory, all zero, in huge pages if the system has them.

    Dense masks are so large that the allocator gets new pages from the system each time. With normal pages, half of the
    time would go into page faults, one for every 4 KiB.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class BlockWriter:
    """Writes one value for allowed pairs and another for refused pairs into masks.

    Pairs of different segments are refused. Inside a segment, only the distance query − key counts, so the block of
    every segment is the upper left corner of the longest segment's block, and the rows of that block are slices of one
    line of values. So nothing is computed for a segment, and the line stays in the processor's L1 cache.

    Masks are contiguous [B, 1, L, L] in host memory. Large ones are written by as many threads as PyTorch uses.

    Args:
        dtype: the masks' dtype.
        band: the distances that are allowed inside a segment.
        allowed: the value of allowed pairs.
        refused: the value of refused pairs.
    """

    def __init__(self, dtype: torch.dtype, band: Band, *, allowed: float, refused: float) -> None:
        self.band = band
        # Values are copied as integers of the same size, since NumPy has no bfloat16.
        self._bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        values = torch.tensor([allowed, refused], dtype=dtype)
        self._allowed, self._refused = values.view(self._bits).numpy()

    def write_all(
        self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer], *, is_zero: bool
    ) -> None:
        """Writes each element of a mask once.

        Args:
            mask: the mask.
            starts: index among all B·L tokens of each segment's first token: integers [k]. Rows of the mask whose query
                is in no segment are not written.
            lengths: tokens of each segment: integers [k]; no segment is in two rows.
            is_zero: whether the mask is all zero, so that zeros need not be written.
        """
        corner = self._corner(int(lengths.max(initial=0)))
        refused = np.full(mask.shape[-1], self._refused)
        writes_inside = not (is_zero and self.band.is_everything and self._allowed == 0)
        writes_outside = not (is_zero and self._refused == 0)

        def write(row: NDArray[Any], first: int, length: int) -> None:
            queries, stop = row[first : first + length], first + length
            if writes_outside:
                queries[:, :first] = refused[:first]
                queries[:, stop:] = refused[stop:]
            if writes_inside:
                queries[:, first:stop] = corner[:length, :length]

        self._for_each_segment(mask, starts, lengths, write)

    def write(self, mask: torch.Tensor, segments: NDArray[np.integer], *, clear: bool = False) -> None:
        """Writes only the blocks of the segments on the diagonal; the rest of the mask must have the refused value.

        Args:
            mask: the mask.
            segments: offsets of the segments among all B·L tokens: integers [k + 1].
            clear: whether to fill these blocks with the refused value instead, after an earlier call wrote them.
        """
        lengths = np.diff(segments)
        size = int(lengths.max(initial=0))
        block = np.broadcast_to(np.full(size, self._refused), (size, size)) if clear else self._corner(size)

        def write(row: NDArray[Any], first: int, length: int) -> None:
            row[first : first + length, first : first + length] = block[:length, :length]

        self._for_each_segment(mask, segments[:-1], lengths, write)

    def _for_each_segment(
        self,
        mask: torch.Tensor,
        starts: NDArray[np.integer],
        lengths: NDArray[np.integer],
        work: Callable[[NDArray[Any], int, int], None],
    ) -> None:
        """Calls `work` with each segment's row of the mask [L, L], its start in the row, and its length."""
        rows = mask.view(self._bits).numpy()[:, 0]
        row_indices, firsts = np.divmod(starts, mask.shape[-1])
        segments = list(zip(row_indices.tolist(), firsts.tolist(), lengths.tolist(), strict=True))

        def work_on(share: list[tuple[int, int, int]]) -> None:
            for row, first, length in share:
                work(rows[row], first, length)

        num_threads = 1 if mask.nbytes < _BYTES_FOR_THREADS else torch.get_num_threads()
        if num_threads == 1:
            work_on(segments)
        else:  # a new pool each time, since the threads of a pool would not survive a fork
            with ThreadPoolExecutor(num_threads) as threads:
                list(threads.map(work_on, [segments[i::num_threads] for i in range(num_threads)]))

    def _corner(self, size: int) -> NDArray[Any]:
        """Returns the block of a segment of `size` tokens: a view [size, size], of which shorter ones take a corner."""
        if size == 0:
            return np.empty((0, 0), dtype=self._allowed.dtype)
        # The values by distance, from size − 1 down to −(size − 1); query q's row of the block begins at distance q.
        line = np.where(self.band.allows(np.arange(size - 1, -size, -1)), self._allowed, self._refused)
        return np.lib.stride_tricks.sliding_window_view(line, size)[::-1]
