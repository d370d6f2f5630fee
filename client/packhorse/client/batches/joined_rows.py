"""A mixture's joined bins, divided into shorter rows before they become batches: `in_rows`.

A mixture of datasets of several lengths joins short bins into one long bin. Leaves assembling the rows to `batch`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packhorse.client.streams.blocks import BinBlock


def in_rows(block: BinBlock, rows_per_bin: NDArray[np.int64], batch_size: int) -> Iterator[tuple[int, BinBlock]]:
    """Divides a mixture's joined bins into rows; yields (rows in each bin, block of rows) for some batches at a time.

    All rows of a batch have one length, which is as short as its components allow: if it has bins of k and bins of l
    joined bins, each becomes gcd(k, l) rows. Successive batches with the same number come together.

    Example:
        >>> ids, lengths, rows = np.array([7, 8, 9]), np.array([4, 3, 4]), np.array([0, 1, 1], dtype=np.uint16)
        >>> block = BinBlock(
        ...     ids=ids,
        ...     lengths=lengths,
        ...     bin_ends=np.array([2, 3]),
        ...     positions=np.array([0, 1]),
        ...     component_ids=np.array([0, 0]),
        ...     rows=rows,
        ... )
        >>> [(num_rows, part.bin_ends.tolist()) for num_rows, part in in_rows(block, np.array([2]), batch_size=1)]
        [(2, [1, 2, 2, 3])]

    Args:
        block: bins of a mixture.
        rows_per_bin: short bins in each joined bin of every component: int64 [C].
        batch_size: bins in a batch, at least 1.
    """
    if not len(block):
        return
    # 0 for empty bins without a component: any number of rows suits them, and gcd(0, k) is k.
    num_joined = np.zeros(len(block), dtype=np.int64)
    if block.component_ids is not None:
        num_joined = np.where(block.component_ids < 0, 0, rows_per_bin[block.component_ids])
    rows_of_batches = np.maximum(np.gcd.reduceat(num_joined, np.arange(0, len(block), batch_size)), 1)
    # Where the number of rows changes; it is at least 1, so the 0 at either end is a change too.
    edges = np.flatnonzero(np.diff(rows_of_batches, prepend=0, append=0))
    for first, last in pairwise(edges.tolist()):  # batches [first, last) have the same number of rows
        bins = slice(first * batch_size, min(last * batch_size, len(block)))
        num_rows = int(rows_of_batches[first])
        yield num_rows, _divided(block.slice(bins.start, bins.stop), num_joined[bins], num_rows)


def _divided(block: BinBlock, num_joined: NDArray[np.int64], num_rows: int) -> BinBlock:
    """Returns a block in which each bin is divided into `num_rows` bins, some of them perhaps empty.

    Args:
        block: the bins.
        num_joined: short bins that were joined in each of them, a multiple of `num_rows`; 0 for bins without sequences:
            int64 [N].
        num_rows: rows to make of each.
    """
    if num_rows == 1 or block.rows is None or block.component_ids is None:
        return block
    sizes = np.diff(block.bin_ends, prepend=0)
    # Of 4 short bins joined and 2 rows, short bins 0 and 1 are row 0, and 2 and 3 are row 1.
    rows = block.rows // np.repeat(np.maximum(num_joined // num_rows, 1), sizes)
    row_sizes = np.bincount(np.repeat(np.arange(len(block)), sizes) * num_rows + rows, minlength=len(block) * num_rows)
    return replace(
        block,
        bin_ends=np.cumsum(row_sizes),
        positions=block.positions.repeat(num_rows),
        component_ids=np.where(row_sizes > 0, block.component_ids.repeat(num_rows), np.int32(-1)),
        rows=None,
    )
