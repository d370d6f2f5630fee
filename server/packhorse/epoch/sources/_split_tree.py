"""Positions split between components, two by two, so that each stays near its exact share after every position.

Owns the tree of splits, how many of the first n positions each component gets, and the kernel that deals the positions
that follow. Leaves remembering them to `mixture_epoch`, and what is due to each component to `stages`.

Of two components, the lesser has a share p ≤ 1/2 of their cells. Let T(m) = debt + m·p be the bins due to it after m
cells, and stratum k the cells in which T goes from k to k + 1. Each stratum holds exactly one of its bins, in a cell
that a key chooses. So after m cells it has had ⌊T(m)⌋ or ⌈T(m)⌉ bins, and is off by less than one. A cell that lies in
two strata is taken by one of them at most: hashes of k and of k - 1 decide, so that each cell is taken with probability
p. Hence no period: for every divisor, all remainders of positions have the same shares.

More components are split in a Huffman tree, which merges the two nodes of least weight again and again. Where the cells
of a node are off by e, a side of share p is off by less than 1 + p·e after its split. An inner node's p is at most 2/3,
since its sibling is as heavy as either of its own sides. So two components are off by less than 1, three by less than
2, four by less than 3, and any number by less than 4.

A debt is what was due to a component before and it has not had. A split begins with T(0) = debt; where that is 1 or
more, its first cells are the lesser's. A cap is the most that a component gives. Where one side reaches its cap, the
other gets the cells.
"""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import inlined, kernel_or, kernel_part
from packhorse.epoch.permutation import GOLDEN, mix

NO_CAP = 2**62
"""Above every cap."""

DEBT_UNITS = 2**32
"""Units of a bin in which debts are counted."""

_BITS = 59
"""Bits to which the weights of a split are scaled. Where their sum has more, they are rounded: a share is wrong by less
than 2^-59, which is a hundredth of a bin after 5 · 10^15."""

_MASK = 2**64 - 1
_FORCED, _OFFSET, _LENGTH, _ITEM, _NEXT_LENGTH, _NEXT_ITEM, _NEXT_OVER = range(7)  # columns of a split's state
_WIDTH = 7
_NO_ITEM = -2
_U1, _U32, _LOW_32 = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)
_OF_32_BITS = 2.0**-32


class _Split(NamedTuple):
    """Cells split between a lesser and a greater side: the number of another split, or ~component."""

    lesser: int
    greater: int
    part: int
    """Units that become due to the lesser in a cell; at most half of `whole`."""
    whole: int
    """Units of a bin."""
    debt: int
    """Units due to the lesser at first; below `whole`. Strata are counted from where it is 0."""
    forced: int
    """Number of cells that are the lesser's before strata begin."""
    caps: tuple[int, int]
    """The most bins that the lesser and the greater give."""


class SplitTree:
    """C components that share positions [0, ∞), or as many as their caps allow.

    Args:
        weights: at least 0.
        debts: due to each at first, in `DEBT_UNITS` of a bin.
        key: of the choices.
        caps: the most bins that each gives; None for no limit. Components with neither weight nor debt have 0.
    """

    def __init__(
        self, weights: Sequence[int], debts: Sequence[int], key: int, caps: Sequence[int] | None = None
    ) -> None:
        self._num_components = len(weights)
        self._splits: list[_Split] = []
        self._root = self._grow(weights, debts, caps)
        self.root = np.int64(self._root)
        shape = (len(self._splits), 2)
        self.children = np.array([each[:2] for each in self._splits], dtype=np.int64).reshape(shape)
        self.units = np.array([(each.part, each.whole) for each in self._splits], dtype=np.int64).reshape(shape)
        self.keys = np.empty(len(self._splits), dtype=np.uint64)
        _fill_keys(np.uint64(key), self.keys)

    def _grow(self, weights: Sequence[int], debts: Sequence[int], caps: Sequence[int] | None) -> int:
        """Makes the splits, and returns the root."""
        components = [c for c, weight in enumerate(weights) if (weight if caps is None else caps[c])]
        heap = [
            (weights[c], order, ~c, debts[c], NO_CAP if caps is None else caps[c]) for order, c in enumerate(components)
        ]
        heapq.heapify(heap)
        order = len(heap)
        while len(heap) > 1:
            lesser, greater = heapq.heappop(heap), heapq.heappop(heap)
            self._splits.append(_split_of(lesser, greater))
            cap = min(lesser[4] + greater[4], NO_CAP)
            node = (lesser[0] + greater[0], order, len(self._splits) - 1, lesser[3] + greater[3], cap)
            heapq.heappush(heap, node)
            order += 1
        self._paths = _paths(self._splits, heap[0][2])
        return int(heap[0][2])

    def before(self, n: int) -> list[int]:
        """Returns how many of the first n positions each component gets; n may be of any size."""
        return self._walk(n)[0] if n else [0] * self._num_components

    def before_of(self, component: int, n: int) -> int:
        """Returns how many of the first n positions one component gets."""
        for node, side in self._paths.get(component, ()):
            num = self._lessers(node, n)[0]
            n = n - num if side else num
        return n if component in self._paths else 0

    def state_at(self, n: int) -> tuple[list[int], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Returns `before(n)`, and the arguments with which `deal` continues from there.

        States int64 [splits, 7], strata uint64 [splits], and what the caps leave of either side: int64 [splits, 2].
        """
        counts, cells, states = self._walk(n)
        strata = np.array([stratum & _MASK for stratum, _ in states], dtype=np.uint64)
        table = np.array([state for _, state in states], dtype=np.int64).reshape(len(states), _WIDTH)
        rests = [
            [NO_CAP if cap >= NO_CAP else cap - num for cap, num in zip(split.caps, nums, strict=True)]
            for split, nums in zip(self._splits, cells, strict=True)
        ]
        return counts, table, strata, np.array(rests, dtype=np.int64).reshape(len(states), 2)

    def _walk(self, n: int) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, tuple[int, ...]]]]:
        """Returns how many positions each component gets, either side of every split, and the splits' states."""
        counts = [0] * self._num_components
        cells = [(0, 0)] * len(self._splits)
        states: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(self._splits)
        pending = [(self._root, n)]
        while pending:
            node, m = pending.pop()
            if node < 0:
                counts[~node] = m
                continue
            split = self._splits[node]
            num, states[node] = self._lessers(node, m)
            cells[node] = (num, m - num)
            pending += [(split.lesser, num), (split.greater, m - num)]
        return counts, cells, states

    def _lessers(self, node: int, m: int) -> tuple[int, tuple[int, tuple[int, ...]]]:
        """Returns how many of m cells of a split are the lesser's, and (stratum, state) of the next cell."""
        lesser_cap, greater_cap = self._splits[node].caps
        num, stratum, state = _state(self._splits[node], self.keys[node], m)
        if lesser_cap < NO_CAP:
            num = min(num, lesser_cap)
        if greater_cap < NO_CAP:
            num = max(num, m - greater_cap)
        return num, (stratum, state)


def _paths(splits: Sequence[_Split], root: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """Returns for every component the splits from the root to it, each with 1 where it is on the greater side."""
    paths = {}
    pending: list[tuple[int, tuple[tuple[int, int], ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if node < 0:
            paths[~node] = path
        else:
            pending += [(splits[node].lesser, (*path, (node, 0))), (splits[node].greater, (*path, (node, 1)))]
    return paths


def _split_of(lesser: tuple[Any, ...], greater: tuple[Any, ...]) -> _Split:
    """Returns the split of two nodes: (weight, order, node, debt, cap) each."""
    part, whole = lesser[0], lesser[0] + greater[0]
    owed = lesser[3] * max(whole, 1) - part * (lesser[3] + greater[3])  # in units of whole · DEBT_UNITS
    owed_of = max(whole, 1) * DEBT_UNITS
    if whole.bit_length() > _BITS:
        part, whole = max(part * 2**_BITS // whole, 1 if part else 0), 2**_BITS
    else:
        scale = _BITS - whole.bit_length()
        part, whole = part << scale, max(whole, 1) << scale
    debt = owed * whole // owed_of
    forced = 0 if debt < whole else (debt - whole) // (whole - part) + 1
    debt += forced * (part - whole)
    return _Split(lesser[2], greater[2], part, whole, debt, forced, (lesser[4], greater[4]))


def _state(split: _Split, key: np.uint64, m: int) -> tuple[int, int, tuple[int, ...]]:
    """Returns how many of m cells are the lesser's, the stratum of the next cell, and the split's row of states."""
    part, whole, forced = split.part, split.whole, max(split.forced - m, 0)
    num, m = min(m, split.forced), max(m - split.forced, 0)
    if not part:
        return num, 0, (forced, 0, NO_CAP, _NO_ITEM, NO_CAP, _NO_ITEM, 0)
    due = split.debt + m * part
    if due < 0:  # no stratum has begun
        length = -(due // part)
        following, next_length, next_over = _item(np.uint64(0), due + length * part, part, whole, key, -1, False)
        return num, -1, (forced, 0, length, _NO_ITEM, next_length, following, next_over)
    stratum, offset = divmod(due, whole)
    offset, rest = divmod(offset, part)
    cut = split.debt // part if split.debt > 0 else -1
    is_taken = False
    if stratum and rest:
        cut_before = cut if stratum == 1 else -1
        item, length, over = _item(_word(stratum - 1), (rest + whole) % part, part, whole, key, cut_before, False)
        is_taken = over > 0 and item == length - 1
    item, length, over = _item(_word(stratum), rest, part, whole, key, -1 if stratum else cut, is_taken)
    is_taken = over > 0 and item == length - 1
    following, next_length, next_over = _item(_word(stratum + 1), over, part, whole, key, -1, is_taken)
    return num + stratum + (item < offset), stratum, (forced, offset, length, item, next_length, following, next_over)


def _word(stratum: int) -> np.uint64:
    return np.uint64(stratum & _MASK)


@kernel_or()
def _fill_keys(key: Any, keys_out: Any) -> None:
    """Gives every split a key of its own."""
    for i in range(len(keys_out)):
        keys_out[i] = mix(key ^ mix(np.uint64(i) + GOLDEN))


@kernel_or()
def _item(stratum: Any, rest: Any, part: Any, whole: Any, key: Any, cut: Any, is_taken: Any) -> Any:
    """Finds the lesser's cell of a stratum, counted from the first that begins in it.

    Args:
        stratum: its number, modulo 2^64.
        rest: units between the stratum's begin and that cell's, in [0, part).
        part: as in `_Split`.
        whole: as in `_Split`.
        key: of the split.
        cut: number of a stratum's cells that are before the first position; -1 where there is none.
        is_taken: whether the previous stratum takes the cell that lies in both.

    Returns:
        The cell, -1 for the one that lies in the previous stratum as well; the number of cells that begin in the
        stratum; and how far into the next stratum the first cell after them begins.
    """
    length = (whole - rest + part - 1) // part
    return _chosen(stratum, rest, part, whole, key, cut, is_taken, length)


@inlined
def _chosen(stratum: Any, rest: Any, part: Any, whole: Any, key: Any, cut: Any, is_taken: Any, length: Any) -> Any:
    """As `_item`, from the number of cells that begin in the stratum."""
    over = rest + length * part - whole
    word = mix(key ^ (stratum * GOLDEN))
    at = np.float64(word >> _U32) * _OF_32_BITS * whole  # how far into the stratum
    inner = np.float64(word & _LOW_32) * _OF_32_BITS  # how far into its inner cells
    if cut >= 0:
        return min(cut + np.int64(inner * (length - cut)), length - 1), length, over
    if over > 0 and at >= whole - (part - over):
        return length - 1, length, over
    if rest > 0 and not is_taken and at * (whole - part + rest) < np.float64(rest) * whole:
        return -1, length, over
    num_inner = length - (1 if over > 0 else 0)
    return min(np.int64(inner * num_inner), num_inner - 1), length, over


@kernel_or()
def deal(
    root: Any,
    children: Any,
    units: Any,
    keys: Any,
    states: Any,
    strata: Any,
    rests: Any,
    components_out: Any,
    numbers_out: Any,
) -> None:
    """Deals the positions that follow a state.

    Every split partitions its positions and keeps their order: the lesser's first, then the greater's.

    Args:
        root: of a `SplitTree`.
        children: of a `SplitTree`; they come before their split.
        units: of a `SplitTree`.
        keys: of a `SplitTree`.
        states: from `SplitTree.state_at`.
        strata: from `SplitTree.state_at`.
        rests: from `SplitTree.state_at`.
        components_out: gets the component of each position: int32 [N].
        numbers_out: gets the number of the component's earlier positions: uint32 [N].
    """
    num = len(components_out)
    positions, buffer = np.empty(num, np.uint32), np.empty(num, np.uint32)
    for i in range(num):
        positions[i] = i
    is_lesser = np.empty(num, np.uint8)
    begins, ends = np.zeros(len(children), np.int64), np.zeros(len(children), np.int64)
    _give(root, 0, num, positions, begins, ends, components_out, numbers_out)
    for node in range(len(children) - 1, -1, -1):
        begin, end = begins[node], ends[node]
        if begin == end:
            continue
        ours = is_lesser[: end - begin]
        _mark(states[node], strata[node], units[node, 0], units[node, 1], keys[node], ours)
        if min(rests[node, 0], rests[node, 1]) < end - begin:
            _cap(rests[node, 0], rests[node, 1], ours)
        middle = _partition(positions, begin, end, ours, buffer)
        _give(children[node, 0], begin, middle, positions, begins, ends, components_out, numbers_out)
        _give(children[node, 1], middle, end, positions, begins, ends, components_out, numbers_out)


@kernel_part
def _mark(state: Any, stratum: Any, part: Any, whole: Any, key: Any, is_lesser: Any) -> None:
    """Marks which of a split's next cells are the lesser's, from its state on."""
    num = len(is_lesser)
    first = min(state[_FORCED], num)
    for i in range(num):
        is_lesser[i] = i < first
    begin = first - state[_OFFSET]  # where the stratum begins
    item, length = state[_ITEM], state[_LENGTH]
    following, next_length, next_over = state[_NEXT_ITEM], state[_NEXT_LENGTH], state[_NEXT_OVER]
    least = max(whole // max(part, 1), 1)
    while begin < num:
        if item >= -1 and first <= begin + item < num:
            is_lesser[begin + item] = 1
        begin += length
        if begin - 1 < num and following == -1:
            is_lesser[begin - 1] = 1
        stratum += _U1
        item, length, over = following, next_length, next_over
        after = least if over + least * part >= whole else least + 1
        is_taken = over > 0 and item == length - 1
        following, next_length, next_over = _chosen(
            stratum + _U1, over, part, whole, key, np.int64(-1), is_taken, np.int64(after)
        )


@kernel_part
def _cap(lesser: Any, greater: Any, is_lesser: Any) -> None:
    """Gives one side's cells to the other once it has reached its cap."""
    for i in range(len(is_lesser)):
        if is_lesser[i]:
            is_lesser[i] = lesser > 0
        else:
            is_lesser[i] = greater == 0
        if is_lesser[i]:
            lesser -= 1
        else:
            greater -= 1


@kernel_part
def _partition(positions: Any, begin: Any, end: Any, is_lesser: Any, buffer: Any) -> Any:
    """Moves the lesser's of a split's positions to the front, and returns where the greater's begin."""
    num_lesser, num_greater = np.uint64(0), np.uint64(0)
    for i in range(end - begin):
        position, side = positions[begin + i], np.uint64(is_lesser[i])
        positions[np.uint64(begin) + num_lesser] = position  # overwritten by the next one, unless it is the lesser's
        buffer[num_greater] = position
        num_lesser += side
        num_greater += _U1 - side
    middle = begin + np.int64(num_lesser)
    for i in range(end - middle):
        positions[middle + i] = buffer[i]
    return middle


@kernel_part
def _give(
    node: Any, begin: Any, end: Any, positions: Any, begins: Any, ends: Any, components_out: Any, numbers_out: Any
) -> None:
    """Gives positions to a component, or to a split that is dealt later."""
    if node >= 0:
        begins[node], ends[node] = begin, end
        return
    for i in range(begin, end):
        position = positions[i]
        components_out[position], numbers_out[position] = ~node, i - begin
