"""`ReadAhead`: ranges of bytes of several objects in a store, read in blocks that are fetched ahead.

Owns which blocks a range needs. Leaves fetching ahead to `fetch_ahead`, and blocks on the node's disk to `node_cache`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.fetch_ahead import FetchAhead
from packhorse.tokens.stored.cached_object import CachedObject, joined
from packhorse.tokens.stored.store_cache import StoreCache

_KEPT_BLOCKS = 256
"""Blocks that a process keeps in memory."""


class ReadAhead:
    """Ranges of bytes of several numbered objects, read in blocks that are fetched ahead."""

    def __init__(self, open_object: Callable[[int], CachedObject], store: StoreCache) -> None:
        self._open_object = open_object
        self._block_bytes = store.block_bytes
        self._blocks = FetchAhead(
            self._block,
            ahead=store.read_ahead_bytes // store.block_bytes,
            keep_bytes=_KEPT_BLOCKS * store.block_bytes,
        )

    def expect(self, numbers: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Begins to fetch the blocks of S ranges, in order.

        Args:
            numbers: object of each range: int64 [S].
            begins: first byte of each range: int64 [S].
            ends: exclusive end of each range, in bytes: int64 [S].
        """
        firsts = begins // self._block_bytes
        # Blocks of each range: from its first one to its end, rounded up; none for an empty range.
        counts = np.where(ends > begins, -(-ends // self._block_bytes) - firsts, 0)
        # All ranges end to end: each counts its blocks from its own first one, instead of those of the ranges before.
        before = counts.cumsum() - counts
        blocks = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
        keys = zip(np.repeat(numbers, counts).tolist(), blocks.tolist(), strict=True)
        self._blocks.expect(list(dict.fromkeys(keys)))

    def read(self, number: int, begin: int, end: int) -> memoryview:
        """Returns bytes [begin, end) of an object; a view if they are in one block."""
        first = begin // self._block_bytes
        offset = first * self._block_bytes
        if begin < end <= offset + self._block_bytes:  # in one block, as most ranges are
            return self._blocks.get((number, first))[begin - offset : end - offset]
        return memoryview(joined(lambda block: self._blocks.get((number, block)), begin, end, self._block_bytes))

    def _block(self, key: tuple[int, int]) -> memoryview:
        number, block = key
        return self._open_object(number).block(block)
