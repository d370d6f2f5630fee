"""`StoredShards`: the cells of MDS shards in a store, read ahead in blocks through the node's disk.

Leaves the layout of shards to `formats.mds`, and what a cell holds to `mds`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.mds import MdsShards, head_bytes
from packhorse.formats.object_store import for_each
from packhorse.storage import BoundedCache
from packhorse.tokens.stored.cached_object import CachedObject
from packhorse.tokens.stored.read_ahead import ReadAhead
from packhorse.tokens.stored.store_cache import StoreCache

_MOST_OPEN_SHARDS = 1024
"""Shards whose offsets are held in memory."""


class StoredShards:
    """The cells of shards in a store; it pickles by URL."""

    def __init__(self, shards: MdsShards, store: StoreCache) -> None:
        self._shards = shards
        self._store = store
        self._opened = BoundedCache[int, _OpenShard](_MOST_OPEN_SHARDS)
        self._reads = ReadAhead(self._object_of, store)

    def cell(self, index: int, column: str) -> memoryview:
        """Returns the bytes of one column of one sequence; see `MdsShards.cell`."""
        number, row = self._shards.shard_of(index)
        begin, end = self._shard(number).offsets[row : row + 2].tolist()
        sequence = bytes(self._reads.read(number, begin, end))  # a view would keep the whole block in memory
        return self._shards.cell_of(memoryview(sequence), column, f"{self._shards.where_of(number)}: sequence {index}")

    def expect(self, rows: NDArray[np.int64]) -> None:
        """Begins to fetch the blocks of sequences, in order."""
        numbers, rows_there = self._shards.shards_of(rows)
        chosen = np.unique(numbers).tolist()
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        # Several shards at a time: the store is asked for the size and the offsets of each before any of its blocks.
        for number, shard in zip(chosen, for_each(chosen, self._shard), strict=True):
            is_there = numbers == number
            rows_of_shard = rows_there[is_there]
            begins[is_there], ends[is_there] = shard.offsets[rows_of_shard], shard.offsets[rows_of_shard + 1]
        self._reads.expect(numbers, begins, ends)

    def _object_of(self, number: int) -> CachedObject:
        return self._shard(number).stored

    def _shard(self, number: int) -> "_OpenShard":
        """Returns a shard, which is opened when it is first needed."""
        return self._opened.get(number, lambda: self._open_shard(number))

    def _open_shard(self, number: int) -> "_OpenShard":
        """Opens a shard and reads its offsets; a ValueError if they do not fit the folder's `index.json`."""
        url, num_sequences = self._shards.shards[number]
        stored = CachedObject(str(url), self._store)
        # A shard begins with the number of its sequences and their offsets. They stay in memory, not on the disk.
        head = np.frombuffer(stored.object.read(0, head_bytes(num_sequences)), "<u4")
        count, offsets = head[0], head[1:]
        if count != num_sequences or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > stored.size_bytes:
            raise ValueError(
                f"{self._shards.where_of(number)} does not hold the {num_sequences} sequences that its index says"
            )
        return _OpenShard(stored, offsets)


class _OpenShard(NamedTuple):
    """A shard in a store whose offsets have been read."""

    stored: CachedObject
    offsets: NDArray[np.uint32]
    """Where its sequences begin and the last ends, in bytes: uint32 [n + 1]."""
