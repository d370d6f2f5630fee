"""The component of each position of a mixture, computed for chunks of positions and remembered.

Owns `ComponentOrder`: the step from a position to its component, and back. Leaves the choice of each position's
component to `_split_tree`, and the bins of components to `mixture_epoch`.

Shape letters: C components, N positions.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel_or
from packhorse.epoch.sources._split_tree import SplitTree
from packhorse.storage import BoundedCache

_CHUNK = 1 << 14  # positions of a chunk
_BYTES_PER_POSITION = 8
_MOST_BYTES = 4 << 20  # memory of the chunks that are remembered, which are those used last
_LEAST_CHUNKS = 2  # so many are remembered in any case


class _Chunk(NamedTuple):
    """Consecutive positions whose components were computed together."""

    counts_before: list[int]
    """Number of positions that each component gets before the chunk."""
    components: NDArray[np.int32]
    """Component of each position: int32 [positions]."""
    numbers: NDArray[np.uint32]
    """For each position, number of the component's positions before it in the chunk: uint32 [positions]."""


class ComponentOrder:
    """The component of each position from 0 on. Thread-safe.

    A segment is a part of an epoch in which weights do not change (`mixture`). A position here counts the bins that are
    dealt by one segment's weights, from 0 on, and may be beyond the segment's end.

    Args:
        tree: decides which component gets which position; positions are below the sum of its caps.
        length: end of the positions that are ever asked for; None for no end.
    """

    def __init__(self, tree: SplitTree, length: int | None = None) -> None:
        self._tree = tree
        self._length = length
        self._lock = threading.Lock()
        most_chunks = max(_LEAST_CHUNKS, _MOST_BYTES // (_BYTES_PER_POSITION * _CHUNK))
        self._chunks: BoundedCache[int, _Chunk] = BoundedCache(most_chunks)

    @property
    def most_bytes(self) -> int:
        """The most bytes of memory that the order takes."""
        without_end = _MOST_BYTES + _BYTES_PER_POSITION * _CHUNK  # one chunk is made while the others are remembered
        return without_end if self._length is None else min(_BYTES_PER_POSITION * self._length, without_end)

    def before(self, num: int) -> list[int]:
        """Returns the number of the first `num` positions that each component gets; `num` may be of any size."""
        return self._tree.before(num)

    def look_up(
        self, first: int, before: Sequence[int], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and how many positions from `first` on it has before this one.

        Args:
            first: the position from which `positions` are counted.
            before: `self.before(first)`.
            positions: int64 [N], at least 0.
        """
        components = np.empty(len(positions), dtype=np.int32)
        numbers = np.empty(len(positions), dtype=np.int64)
        done = 0
        while done < len(positions):
            chunk_number = (first + int(positions[done])) // _CHUNK
            chunk = self._chunk(chunk_number)
            # What each component has from `first` to the chunk; below 0 if the chunk begins before `first`.
            base = np.array([a - b for a, b in zip(chunk.counts_before, before, strict=True)], dtype=np.int64)
            begin = chunk_number * _CHUNK - first
            done = _look_up(chunk.components, chunk.numbers, base, begin, positions, done, components, numbers)
        return components, numbers

    def positions_of(
        self, component: int, first: int, before: Sequence[int], end: int, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions that a component has under some numbers, counted from `first`: int64 [N].

        This is the inverse of `look_up`.

        Args:
            component: the component.
            first: as for `look_up`.
            before: as for `look_up`.
            end: exclusive end of the positions that are searched, counted from 0.
            numbers: for each position, how many the component has from `first` on before it: int64 [N].
        """
        positions = np.empty(len(numbers), dtype=np.int64)
        chunks = range(first // _CHUNK, -(-end // _CHUNK))  # numbers of chunks, up to that of `end` - 1
        for i, number in enumerate(numbers.tolist()):
            number_from_0 = number + before[component]
            # The last chunk before which the component has no more positions than this number.
            index = bisect_right(chunks, number_from_0, key=lambda c: self._tree.before_of(component, c * _CHUNK)) - 1
            chunk = self._chunk(chunks[index])
            number_in_chunk = number_from_0 - chunk.counts_before[component]
            position_in_chunk = int(np.flatnonzero(chunk.components == component)[number_in_chunk])
            positions[i] = chunks[index] * _CHUNK + position_in_chunk - first
        return positions

    def _chunk(self, number: int) -> _Chunk:
        """Returns a chunk, and remembers it."""
        with self._lock:
            return self._chunks.get(number, lambda: self._computed(number))

    def _computed(self, number: int) -> _Chunk:
        first = number * _CHUNK
        length = _CHUNK if self._length is None else min(_CHUNK, self._length - first)
        components, numbers = np.empty(length, dtype=np.int32), np.empty(length, dtype=np.uint32)
        counts_before = self._tree.deal(first, components, numbers)  # fills both
        return _Chunk(counts_before, components, numbers)


@kernel_or()
def _look_up(
    components: Any,
    numbers: Any,
    base: Any,
    chunk_begin: Any,
    positions: Any,
    done: Any,
    components_out: Any,
    numbers_out: Any,
) -> Any:
    """Looks positions up in a chunk, from index `done` on, until one lies outside it; returns the index of this one.

    Args:
        components: `_Chunk.components`.
        numbers: `_Chunk.numbers`.
        base: number to add for each component: int64 [C].
        chunk_begin: the chunk's first position, counted as `positions` are; negative if it is before these begin.
        positions: int64 [N].
        done: number of positions that are looked up already.
        components_out: receives components: int32 [N].
        numbers_out: receives numbers: int64 [N].
    """
    for i in range(done, len(positions)):
        inside = np.uint64(positions[i] - chunk_begin)  # a negative one becomes very large
        if inside >= np.uint64(len(components)):
            return i
        component = np.uint64(components[inside])  # unsigned: it is not checked for being below 0
        components_out[i] = component
        numbers_out[i] = base[component] + np.int64(numbers[inside])
    return len(positions)
