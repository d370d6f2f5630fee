"""`BlockWriter`: writes dense masks in host memory, each segment's block once, with several threads if they are large.

Owns how values are copied into a mask. Leaves which values it has to `dense`, allowed distances to `_band`, and its
memory to `_host_memory`.

Legend: B rows, L tokens in a row, k segments.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.masks._band import Band

_BYTES_FOR_THREADS = 8 << 20
"""Size from which several threads write a mask."""


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

    def write_mask(
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
        refused = np.full(mask.shape[-1], self._refused)  # a line of refused pairs, for what lies beside a segment
        writes_inside = not (is_zero and self.band.is_everything and self._allowed == 0)
        writes_outside = not (is_zero and self._refused == 0)

        def write(row: NDArray[Any], first: int, length: int) -> None:
            stop = first + length
            queries = row[first:stop]  # the lines of the segment's queries, over all keys of the row: [length, L]
            if writes_outside:
                queries[:, :first] = refused[:first]
                queries[:, stop:] = refused[stop:]
            if writes_inside:
                queries[:, first:stop] = corner[:length, :length]

        self._for_each_segment(mask, starts, lengths, write)

    def write_blocks(self, mask: torch.Tensor, segments: NDArray[np.integer]) -> None:
        """Writes only the blocks of the segments on the diagonal; the rest of the mask must have the refused value.

        Args:
            mask: the mask.
            segments: offsets of the segments among all B·L tokens: integers [k + 1].
        """
        lengths = np.diff(segments)
        self._copy_blocks(mask, segments[:-1], lengths, self._corner(int(lengths.max(initial=0))))

    def clear_blocks(self, mask: torch.Tensor, segments: NDArray[np.integer]) -> None:
        """Writes the refused value into the blocks that `write_blocks` wrote for these segments."""
        lengths = np.diff(segments)
        size = int(lengths.max(initial=0))
        block = np.broadcast_to(np.full(size, self._refused), (size, size))  # one line for all, as small as `_corner`'s
        self._copy_blocks(mask, segments[:-1], lengths, block)

    def _copy_blocks(
        self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer], block: NDArray[Any]
    ) -> None:
        """Copies the upper left corner of a block, as large as each segment, to where the segment meets itself."""

        def write(row: NDArray[Any], first: int, length: int) -> None:
            row[first : first + length, first : first + length] = block[:length, :length]

        self._for_each_segment(mask, starts, lengths, write)

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
        # Of a causal segment of 2 tokens the line is [allowed, allowed, refused]; the block is its slices [1:3], [0:2].
        line = np.where(self.band.allows(np.arange(size - 1, -size, -1)), self._allowed, self._refused)
        return np.lib.stride_tricks.sliding_window_view(line, size)[::-1]
