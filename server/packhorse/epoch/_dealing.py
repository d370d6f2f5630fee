"""One stage's positions in one epoch of a mixture, dealt to its components block by block.

Owns which component a position is of, and how many of that component's bins come before it; and the way back. Knows no
component: what their bins are is `mixture`'s.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.epoch._draws import permute_positions
from packhorse.epoch._shares import Shares
from packhorse.epoch.permutation import ROW_WIDTH, fill_parameters

_CHUNK = 1 << 14
"""Blocks are dealt several at a time, up to about so many positions."""

_BYTES_PER_POSITION = 8

_MOST_BYTES = 4 << 20
"""What the chunks used last take together, where there is more than one."""


class _Chunk(NamedTuple):
    """Blocks that were dealt together."""

    first: int
    """Its first position, counted from the dealing's."""
    before: NDArray[np.int64]
    """How many bins each component has given before it: int64 [C]."""
    components: NDArray[np.int32]
    """Which component each of its positions is of."""
    numbers: NDArray[np.uint32]
    """How many of the component's bins come before it in the chunk."""


class Dealing:
    """Positions [0, length) dealt to C components. Safe to be used by many threads.

    A block's positions are dealt by a keyed permutation; a component's bins come in their own order. The last block
    takes what is left below another whole one. What a position gets does not depend on what is asked for.

    Args:
        shares: the weights.
        length: number of positions, at least 1.
        key: of the epoch.
        tweak: where the dealing begins in the epoch; every block has a permutation of its own.
    """

    def __init__(self, shares: Shares, length: int, key: int, tweak: int) -> None:
        self._shares = shares
        self._length = length
        self._key = key
        self._tweak = tweak
        self._num_blocks = max(1, length // shares.block)
        self._blocks_per_chunk = max(1, _CHUNK // shares.block)
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    @property
    def most_bytes(self) -> int:
        """What it remembers, at most."""
        return min(_BYTES_PER_POSITION * self._length, max(_MOST_BYTES, 2 * self._bytes_per_chunk))

    @property
    def _bytes_per_chunk(self) -> int:
        return _BYTES_PER_POSITION * self._shares.block * self._blocks_per_chunk

    def dealt(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and how many of its bins come before: int32 [N], int64 [N]."""
        components = np.empty(len(offsets), dtype=np.int32)
        numbers = np.empty(len(offsets), dtype=np.int64)
        in_chunk, last = self._shares.block * self._blocks_per_chunk, (self._num_blocks - 1) // self._blocks_per_chunk
        done = 0
        while done < len(offsets):
            chunk = self._chunk(min(int(offsets[done]) // in_chunk, last))
            done = _pick(chunk, offsets, done, components, numbers)
        return components, numbers

    def taken(self, num: int) -> NDArray[np.int64]:
        """Returns how many of the first `num` positions each component gets: int64 [C]."""
        if num in (0, self._length):
            return self._shares.before(num)
        chunk = self._chunk_of_block(min(num // self._shares.block, self._num_blocks - 1))
        inside = chunk.components[: num - chunk.first]
        return chunk.before + np.bincount(inside, minlength=len(self._shares.parts))

    def find(self, component: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions of a component's bins; undoes `dealt`."""
        offsets = np.empty(len(numbers), dtype=np.int64)
        for i, number in enumerate(numbers.tolist()):
            chunk = self._chunk_of_block(self._shares.block_of(component, number, self._num_blocks))
            offsets[i] = chunk.first + np.flatnonzero(chunk.components == component)[number - chunk.before[component]]
        return offsets

    def _chunk_of_block(self, block: int) -> _Chunk:
        return self._chunk(block // self._blocks_per_chunk)

    def _chunk(self, number: int) -> _Chunk:
        with self._lock:
            if number not in self._chunks:
                self._chunks[number] = self._deal(number)
                while len(self._chunks) > max(2, _MOST_BYTES // self._bytes_per_chunk):
                    self._chunks.popitem(last=False)
            self._chunks.move_to_end(number)
            return self._chunks[number]

    def _deal(self, number: int) -> _Chunk:
        first = number * self._blocks_per_chunk
        end = min(first + self._blocks_per_chunk, self._num_blocks)
        edges = [block * self._shares.block for block in range(first, end + 1)]
        if end == self._num_blocks:
            edges[-1] = self._length
        firsts = np.array(edges, dtype=np.uint64)
        rows = np.empty((len(edges) - 1, ROW_WIDTH), dtype=np.uint64)
        zeros, tweaks = np.zeros_like(firsts), firsts + np.uint64(self._tweak)
        fill_parameters(np.diff(firsts), zeros, tweaks[:-1], np.uint64(self._key), rows)
        up_to = self._shares.up_to_each(edges)
        components = np.empty(edges[-1] - edges[0], dtype=np.int32)
        numbers = np.empty(edges[-1] - edges[0], dtype=np.uint32)
        _deal(rows, np.diff(up_to, axis=0), components, numbers)
        return _Chunk(edges[0], np.diff(up_to[0]), components, numbers)


@kernel
def _deal(rows: Any, ends: Any, components_out: Any, numbers_out: Any) -> None:
    """Deals blocks: component d gets the positions that a block's permutation leads to [ends[d], ends[d + 1]).

    Args:
        rows: uint64 [n, ROW_WIDTH], each block's permutation.
        ends: int64 [n, C + 1].
        components_out: int32, as long as the blocks together.
        numbers_out: uint32, likewise; how many of the component's come before, from the first block on.
    """
    begin, taken = 0, np.zeros(ends.shape[1] - 1, np.uint32)
    longest = np.max(ends[:, -1])
    owner, dealt, positions = np.empty(longest, np.int32), np.empty(longest, np.int64), np.arange(longest)
    for block in range(len(rows)):
        num = ends[block, -1]
        for component in range(len(taken)):
            owner[ends[block, component] : ends[block, component + 1]] = component
        permute_positions(rows[block], positions[:num], dealt[:num])
        for i in range(num):
            component = owner[dealt[i]]
            components_out[begin + i] = component
            numbers_out[begin + i] = taken[component]
            taken[component] += np.uint32(1)
        begin += num


@kernel
def _pick(chunk: Any, offsets: Any, begin: Any, components_out: Any, numbers_out: Any) -> Any:
    """Looks up offsets from `begin` on as far as they lie in a chunk, and returns which is the first that does not."""
    for i in range(begin, len(offsets)):
        inside = np.uint64(offsets[i] - chunk.first)  # far above, where it is below 0
        if inside >= np.uint64(len(chunk.components)):
            return i
        component = np.uint64(chunk.components[inside])  # unsigned: it is not checked for being below 0
        components_out[i] = component
        numbers_out[i] = chunk.before[component] + np.int64(chunk.numbers[inside])
    return len(offsets)
