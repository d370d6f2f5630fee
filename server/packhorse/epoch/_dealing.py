"""One stage's positions in one epoch of a mixture, dealt to its components block by block.

Owns which component a position is of, and how many of that component's bins come before it; and the way back. Knows no
component: what their bins are is `mixture`'s.
"""

import threading
from collections import OrderedDict
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from packhorse.epoch._shares import Shares
from packhorse.epoch.permutation import Permutation, permute_positions

_MOST_BYTES = 4 << 20
"""What the blocks used last take together, where there is more than one."""


class _Block(NamedTuple):
    first: int
    """Its first position, counted from the dealing's."""
    components: NDArray[np.int32]
    """Which component each of its positions is of."""
    numbers: NDArray[np.int64]
    """How many of the component's bins come before it in the dealing."""


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
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, _Block] = OrderedDict()

    def dealt(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and how many of its bins come before: int32 [N], int64 [N]."""
        components = np.empty(len(offsets), dtype=np.int32)
        numbers = np.empty(len(offsets), dtype=np.int64)
        blocks = self._block_numbers(offsets)
        edges = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1)).tolist()
        for begin, end in pairwise(edges):
            block = self._block(int(blocks[begin]))
            inside = offsets[begin:end] - block.first
            components[begin:end] = block.components[inside]
            numbers[begin:end] = block.numbers[inside]
        return components, numbers

    def taken(self, num: int) -> NDArray[np.int64]:
        """Returns how many of the first `num` positions each component gets: int64 [C]."""
        if num == self._length:
            return self._shares.before(num)
        block = self._block(min(num // self._shares.block, self._num_blocks - 1))
        inside = block.components[: num - block.first]
        return self._shares.before(block.first) + np.bincount(inside, minlength=len(self._shares.parts))

    def find(self, component: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions of a component's bins; undoes `dealt`."""
        offsets = np.empty(len(numbers), dtype=np.int64)
        for i, number in enumerate(numbers.tolist()):
            block = self._block(self._shares.block_of(component, number, self._num_blocks))
            ours = np.flatnonzero(block.components == component)
            offsets[i] = block.first + ours[number - self._shares.before_of(component, block.first)]
        return offsets

    def _block_numbers(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(offsets // self._shares.block, self._num_blocks - 1)

    def _block(self, number: int) -> _Block:
        with self._lock:
            if number not in self._blocks:
                self._blocks[number] = self._deal(number)
                while len(self._blocks) > max(2, _MOST_BYTES // (12 * self._shares.block)):
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            return self._blocks[number]

    def _deal(self, number: int) -> _Block:
        first = number * self._shares.block
        end = self._length if number == self._num_blocks - 1 else first + self._shares.block
        up_to = self._shares.up_to(first)
        row = Permutation(end - first, self._key, self._tweak + first).row
        components = np.empty(end - first, dtype=np.int32)
        numbers = np.empty(end - first, dtype=np.int64)
        _deal(row, self._shares.up_to(end) - up_to, np.diff(up_to), components, numbers)
        return _Block(first, components, numbers)


@numba.njit(nogil=True, cache=True)
def _deal(row: Any, ends: Any, taken: Any, components_out: Any, numbers_out: Any) -> None:
    """Deals a block: component d gets the positions that the permutation leads to [ends[d], ends[d + 1])."""
    num = len(components_out)
    owner = np.empty(num, np.int32)
    for component in range(len(taken)):
        owner[ends[component] : ends[component + 1]] = component
    permute_positions(row, np.arange(num), numbers_out)
    for i in range(num):
        component = owner[numbers_out[i]]
        components_out[i] = component
        numbers_out[i] = taken[component]
        taken[component] += 1
