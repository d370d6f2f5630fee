"""MDS shards in an object store: cells, read through the node's cache and fetched ahead.

Owns which blocks of which shard a sequence lies in; leaves what its bytes mean to `formats.mds_arrays`.
"""

import os
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._fetched_ahead import FetchedAhead
from packhorse.client.sources.store_cache import CachedObject, StoreCache, joined
from packhorse.formats import MdsShards
from packhorse.formats.object_store import for_each

_MOST_OPEN_SHARDS = 1024


class StoredShards:
    """The cells of shards in a store; it pickles by URL."""

    def __init__(self, shards: MdsShards, store: StoreCache) -> None:
        """Takes the index.

        Args:
            shards: opened by URL.
            store: how the store is read.
        """
        self._shards = shards
        self._store = store
        self._objects: OrderedDict[int, tuple[CachedObject, NDArray[np.uint32]]] = OrderedDict()
        self._blocks: FetchedAhead[tuple[int, int], memoryview] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_objects": OrderedDict(), "_blocks": None}

    def cell(self, index: int, column: str) -> memoryview:
        """Returns the bytes of one column of one sequence; see `MdsShards.cell`."""
        number, begin, end = self._span(index)
        sequence = joined(lambda block: self._opened_blocks().get((number, block)), begin, end, self._store.block_bytes)
        return self._shards.cell_of(memoryview(sequence), column, f"{self._shards.where_of(number)}: sequence {index}")

    def expect(self, rows: NDArray[np.int64]) -> None:
        """Begins to fetch the blocks of sequences, in their order."""
        numbers, rows_there = self._shards.shards_of(rows)
        chosen = np.unique(numbers)
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        # Several at a time: each is a wait for its size and its offsets, before any block can be asked for.
        for number, (_, offsets) in zip(chosen.tolist(), for_each(chosen.tolist(), self._opened), strict=True):
            here = numbers == number
            begins[here], ends[here] = offsets[rows_there[here]], offsets[rows_there[here] + 1]
        size = self._store.block_bytes
        firsts, lasts = begins // size, -(-ends // size)
        several = lasts - firsts
        blocks = np.repeat(firsts, several) + np.arange(several.sum()) - np.repeat(several.cumsum() - several, several)
        of_shards = np.repeat(numbers, several)
        _, at = np.unique(of_shards * (1 << 32) + blocks, return_index=True)
        at.sort()
        self._opened_blocks().expect(list(zip(of_shards[at].tolist(), blocks[at].tolist(), strict=True)))

    def _span(self, index: int) -> tuple[int, int, int]:
        """The shard of a sequence, and [begin, end) of its bytes there."""
        number, row = self._shards.shard_of(index)
        _, offsets = self._opened(number)
        begin, end = offsets[row : row + 2].tolist()
        return number, begin, end

    def _opened(self, number: int) -> tuple[CachedObject, NDArray[np.uint32]]:
        """A shard, and where its sequences begin: uint32 [n + 1]."""
        found = self._objects.get(number)
        if found is None:
            url, num_sequences = self._shards.shards[number]
            stored = CachedObject(str(url), self._store)
            frame = np.frombuffer(stored.object.read(0, 4 + 4 * (num_sequences + 1)), "<u4")
            if frame[0] != num_sequences or (frame[2:] < frame[1:-1]).any() or frame[-1] > stored.size_bytes:
                raise ValueError(
                    f"{self._shards.where_of(number)} does not hold the {num_sequences} sequences that its index says"
                )
            found = self._objects[number] = stored, frame[1:]
            while len(self._objects) > _MOST_OPEN_SHARDS:
                self._objects.popitem(last=False)
        return found

    def _opened_blocks(self) -> "FetchedAhead[tuple[int, int], memoryview]":
        if self._blocks is None or self._blocks.process != os.getpid():
            ahead = self._store.read_ahead_bytes // self._store.block_bytes
            self._blocks = FetchedAhead(lambda key: self._opened(key[0])[0].block(key[1]), ahead=ahead)
        return self._blocks
