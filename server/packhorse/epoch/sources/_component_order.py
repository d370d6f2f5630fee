"""The order in which a mixture's positions go to its components, kept chunk by chunk.

Owns each position's component and the number of that component's earlier bins, and the way back. Leaves which component
gets which position to `_split_tree`, and the components' own bins to `mixture_epoch`.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.epoch.sources._split_tree import SplitTree, deal
from packhorse.storage import BoundedCache

_CHUNK = 1 << 14  # positions that are dealt together
_BYTES_PER_POSITION = 8
_MOST_BYTES = 4 << 20  # of the chunks used last together; at least two are kept


class _Chunk(NamedTuple):
    """Positions that were dealt together."""

    before: list[int]
    """How many bins each component has given before."""
    components: NDArray[np.int32]
    """The component of each position."""
    numbers: NDArray[np.uint32]
    """How many of the component's bins come before it in the chunk."""


class ComponentOrder:
    """Positions of C components, endless. Safe to be used by many threads.

    Args:
        tree: decides who gets which; positions are below the sum of its caps.
        length: positions at or beyond it are never requested; None for no end.
    """

    def __init__(self, tree: SplitTree, length: int | None = None) -> None:
        self._tree = tree
        self._length = length
        self._lock = threading.Lock()
        self._chunks: BoundedCache[int, _Chunk] = BoundedCache(max(2, _MOST_BYTES // (_BYTES_PER_POSITION * _CHUNK)))

    @property
    def most_bytes(self) -> int:
        """The most memory that it takes."""
        whole = _MOST_BYTES + _BYTES_PER_POSITION * _CHUNK
        return whole if self._length is None else min(_BYTES_PER_POSITION * self._length, whole)

    def before(self, num: int) -> list[int]:
        """Returns how many of the first `num` positions each component gets; `num` may be of any size."""
        return self._tree.before(num)

    def at(
        self, first: int, before: Sequence[int], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and how many of its bins come between `first` and there.

        Args:
            first: from where positions are counted.
            before: `self.before(first)`.
            positions: int64 [N], at least 0.
        """
        components = np.empty(len(positions), dtype=np.int32)
        numbers = np.empty(len(positions), dtype=np.int64)
        done = 0
        while done < len(positions):
            number = (first + int(positions[done])) // _CHUNK
            chunk = self._chunk(number)
            base = np.array([a - b for a, b in zip(chunk.before, before, strict=True)], dtype=np.int64)
            begin = number * _CHUNK - first
            done = _look_up(chunk.components, chunk.numbers, base, begin, positions, done, components, numbers)
        return components, numbers

    def positions_of(
        self, component: int, first: int, before: Sequence[int], end: int, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of a component's bins, which are below `end`: int64 [N]; the inverse of `at`."""
        positions = np.empty(len(numbers), dtype=np.int64)
        chunks = range(first // _CHUNK, -(-end // _CHUNK))
        for i, number in enumerate(numbers.tolist()):
            wanted = number + before[component]
            which = bisect_right(chunks, wanted, key=lambda c: self._tree.before_of(component, c * _CHUNK)) - 1
            chunk = self._chunk(chunks[which])
            inside = np.flatnonzero(chunk.components == component)[wanted - chunk.before[component]]
            positions[i] = chunks[which] * _CHUNK + int(inside) - first
        return positions

    def _chunk(self, number: int) -> _Chunk:
        with self._lock:
            return self._chunks.get(number, lambda: self._dealt(number))

    def _dealt(self, number: int) -> _Chunk:
        tree, first = self._tree, number * _CHUNK
        length = _CHUNK if self._length is None else min(_CHUNK, self._length - first)
        before, *state = tree.state_at(first)
        components, numbers = np.empty(length, dtype=np.int32), np.empty(length, dtype=np.uint32)
        deal(tree.root, tree.children, tree.units, tree.keys, *state, components, numbers)
        return _Chunk(before, components, numbers)


@kernel
def _look_up(
    components: Any,
    numbers: Any,
    base: Any,
    first: Any,
    positions: Any,
    begin: Any,
    components_out: Any,
    numbers_out: Any,
) -> Any:
    """Looks positions up in a chunk, from index `begin` up to the first that lies outside, whose index is returned.

    `components` and `numbers` are the chunk's, and `first` is its first position; `base`, [C], is added to numbers.
    """
    for i in range(begin, len(positions)):
        inside = np.uint64(positions[i] - first)  # far above, where it is below 0
        if inside >= np.uint64(len(components)):
            return i
        component = np.uint64(components[inside])  # unsigned: it is not checked for being below 0
        components_out[i] = component
        numbers_out[i] = base[component] + np.int64(numbers[inside])
    return len(positions)
