"""Positions split between components, so that each stays near its exact share after every position.

Owns the tree of splits (`SplitTree`), the number of the first n positions that each component gets, and the kernel that
deals the next positions to components (`deal`). Leaves remembering them to `_component_order`, and what is due to each
component to `stages`.

**One split.** Two components, the lesser and the greater, share a sequence of positions, here called cells. The lesser
has a share p ≤ 1/2. T(m) = debt + m·p bins are due to it after m cells. Stratum k is the cells during which T goes from
k to k + 1. In each stratum the lesser gets exactly one cell, its item, which a key chooses. So after m cells it has had
⌊T(m)⌋ or ⌈T(m)⌉ bins, which is less than one off. A cell at the edge of two strata may be the item of only one of them.
Hashes of k and of k - 1 decide this, so that every cell is taken with probability p. So nothing is periodic: for every
divisor, all remainders of positions get the same shares.

**A tree of splits.** More components are split in a Huffman tree, which merges the two nodes of least weight again and
again; the cells of a side are again split. If the number of a node's cells is off by e, a side with share p is off by
less than 1 + p·e. An inner node's p is at most 2/3, since its sibling is at least as heavy as either of its own sides.
So two components are off by less than 1, three by less than 2, four by less than 3, and any number by less than 4.

**Debts and caps.** A component's debt is what it was due before and did not get. A split begins with T(0) = debt; if
that is 1 or more, its first cells are forced: they are the lesser's. A component's cap is the most that it gives. Once
one side has reached its cap, the other gets all cells.
"""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import inlined, kernel_or, kernel_part
from packhorse.epoch.permutation import GOLDEN, mix

NO_CAP = 2**62
"""A cap that is never reached."""

DEBT_UNITS = 2**32
"""Debts are counted in this fraction of a bin: a debt of 2^32 is one bin."""

_BITS = 59
"""Bits to which the sum of a split's weights is scaled. If it has more, the weights are rounded, and a share is wrong
by less than 2^-59: a hundredth of a bin after 5 · 10^15 positions."""

_MASK = 2**64 - 1
_FORCED, _OFFSET, _LENGTH, _ITEM, _NEXT_LENGTH, _NEXT_ITEM, _NEXT_OVER = range(7)
"""Columns of `SplitTree.state_at`: the fields of `_State`, in their order."""
_NO_ITEM = -2  # a `_State.item`: the stratum has no cell for the lesser
_U1, _U32, _LOW_32 = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)
_OF_32_BITS = 2.0**-32


class _Node(NamedTuple):
    """A node of the Huffman tree that has no sibling yet. Nodes are ordered by their first two fields."""

    weight: int
    """Sum of the weights of the components below it."""
    order: int
    """Number of nodes made before it, which breaks ties."""
    number: int
    """Number of its split, or ~component."""
    debt: int
    """Sum of the debts of the components below it."""
    cap: int
    """The most bins that these components give; at most `NO_CAP`."""


class _Split(NamedTuple):
    """Cells split between two sides. A side is a node of the tree: the number of another split, or ~component.

    What is due is counted in units, of which `whole` are a bin, so that the lesser's share p is part / whole.
    """

    lesser: int
    """Node of the side with the smaller weight."""
    greater: int
    """Node of the other side."""
    part: int
    """Units that become due to the lesser with each cell; at most half of `whole`."""
    whole: int
    """Units of a bin."""
    debt: int
    """Units due to the lesser after the forced cells; below `whole`, and negative if it got too much before."""
    forced: int
    """Number of first cells that are all the lesser's, because one bin or more was due to it."""
    caps: tuple[int, int]
    """The most bins that the lesser and the greater give."""


class _State(NamedTuple):
    """Where a split is before its next cell: all that `_mark` needs to go on from there, besides the stratum's number.

    Kernels read it as a row of numbers, in the columns `_FORCED` to `_NEXT_OVER`.
    """

    forced: int
    """Forced cells that are left."""
    offset: int
    """Cells of the current stratum that are over."""
    length: int
    """Cells that begin in the current stratum."""
    item: int
    """The lesser's cell in the current stratum, as `_item` returns it; or `_NO_ITEM`."""
    next_length: int
    """Cells that begin in the next stratum."""
    next_item: int
    """The lesser's cell in the next stratum."""
    next_over: int
    """Units between the end of the next stratum and the begin of the first cell that begins after it."""


class SplitTree:
    """C components that share positions [0, ∞), or as many as their caps allow.

    Args:
        weights: weight of each component, at least 0.
        debts: debt of each component, in `DEBT_UNITS`; may be negative.
        key: decides which cells the lesser of each split gets.
        caps: the most bins that each component gives; None for no limit. A component with neither weight nor debt has a
            cap of 0.

    Attributes:
        root: the root: number of a split, or ~component if there is only one.
        children: (lesser, greater) of each split; children come before their split: int64 [splits, 2].
        units: (part, whole) of each split: int64 [splits, 2].
        keys: key of each split: uint64 [splits].
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
        """Makes the splits of the Huffman tree, and returns its root."""
        components = [c for c, weight in enumerate(weights) if (weight if caps is None else caps[c])]
        heap = [
            _Node(weights[c], order, ~c, debts[c], NO_CAP if caps is None else caps[c])
            for order, c in enumerate(components)
        ]
        heapq.heapify(heap)
        order = len(heap)
        while len(heap) > 1:
            lesser, greater = heapq.heappop(heap), heapq.heappop(heap)
            self._splits.append(_split_of(lesser, greater))
            merged = _Node(
                weight=lesser.weight + greater.weight,
                order=order,
                number=len(self._splits) - 1,
                debt=lesser.debt + greater.debt,
                cap=min(lesser.cap + greater.cap, NO_CAP),
            )
            heapq.heappush(heap, merged)
            order += 1
        root = heap[0].number
        self._paths = _paths(self._splits, root)
        return int(root)

    def before(self, n: int) -> list[int]:
        """Returns the number of the first n positions that each component gets; n may be of any size."""
        return self._walk(n)[0] if n else [0] * self._num_components

    def before_of(self, component: int, n: int) -> int:
        """Returns the number of the first n positions that one component gets."""
        for node, side in self._paths.get(component, ()):
            num = self._lessers(node, n)[0]
            n = n - num if side else num
        return n if component in self._paths else 0

    def state_at(self, n: int) -> tuple[list[int], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Returns `before(n)`, and the arguments with which `deal` continues from position n.

        Returns:
            `before(n)`; the state of each split, int64 [splits, 7]; the number of its current stratum, uint64 [splits];
            and what its caps leave to the lesser and the greater, int64 [splits, 2].
        """
        counts, cells, states = self._walk(n)
        strata = np.array([stratum & _MASK for stratum, _ in states], dtype=np.uint64)
        table = np.array([state for _, state in states], dtype=np.int64).reshape(len(states), len(_State._fields))
        rests = [
            [NO_CAP if cap >= NO_CAP else cap - num for cap, num in zip(split.caps, nums, strict=True)]
            for split, nums in zip(self._splits, cells, strict=True)
        ]
        return counts, table, strata, np.array(rests, dtype=np.int64).reshape(len(states), 2)

    def _walk(self, n: int) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, _State]]]:
        """Follows the first n positions down the tree.

        Returns:
            The number of positions of each component; for each split, those of the (lesser, greater); and for each
            split (stratum, state), as `_state` returns them.
        """
        counts = [0] * self._num_components
        cells = [(0, 0)] * len(self._splits)
        states = [(0, _State(0, 0, 0, 0, 0, 0, 0))] * len(
            self._splits
        )  # each is replaced: the walk comes to every split
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

    def _lessers(self, node: int, m: int) -> tuple[int, tuple[int, _State]]:
        """Returns the lesser's number of the first m cells of a split, within caps, and (stratum, state) after them."""
        lesser_cap, greater_cap = self._splits[node].caps
        num, stratum, state = _state(self._splits[node], self.keys[node], m)
        if lesser_cap < NO_CAP:
            num = min(num, lesser_cap)
        if greater_cap < NO_CAP:
            num = max(num, m - greater_cap)
        return num, (stratum, state)


def _paths(splits: Sequence[_Split], root: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """Returns, for every component, its path from the root: (split, 0 for the lesser side or 1 for the greater)."""
    paths = {}
    pending: list[tuple[int, tuple[tuple[int, int], ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if node < 0:
            paths[~node] = path
        else:
            pending += [(splits[node].lesser, (*path, (node, 0))), (splits[node].greater, (*path, (node, 1)))]
    return paths


def _split_of(lesser: _Node, greater: _Node) -> _Split:
    """Returns the split whose sides are two nodes."""
    part, whole = lesser.weight, lesser.weight + greater.weight
    # The cells of this split come with the debt of both sides together, of which the lesser gets its share. So what is
    # due to it at first is its debt minus that share: owed / owed_of bins, a fraction of integers.
    owed = lesser.debt * max(whole, 1) - part * (lesser.debt + greater.debt)
    owed_of = max(whole, 1) * DEBT_UNITS
    if whole.bit_length() > _BITS:
        part, whole = max(part * 2**_BITS // whole, 1 if part else 0), 2**_BITS
    else:
        scale = _BITS - whole.bit_length()
        part, whole = part << scale, max(whole, 1) << scale
    debt = owed * whole // owed_of
    # A forced cell adds `part` to the debt and pays a bin of it; as many are forced as bring it below one bin.
    forced = 0 if debt < whole else (debt - whole) // (whole - part) + 1
    debt += forced * (part - whole)
    return _Split(
        lesser=lesser.number,
        greater=greater.number,
        part=part,
        whole=whole,
        debt=debt,
        forced=forced,
        caps=(lesser.cap, greater.cap),
    )


def _state(split: _Split, key: np.uint64, m: int) -> tuple[int, int, _State]:
    """Returns the lesser's number of the first m cells, then the stratum and the state of the next cell."""
    part, whole, forced = split.part, split.whole, max(split.forced - m, 0)
    num, m = min(m, split.forced), max(m - split.forced, 0)
    if not part:
        return num, 0, _State(forced, 0, NO_CAP, _NO_ITEM, NO_CAP, _NO_ITEM, 0)
    due = split.debt + m * part
    if due < 0:  # the lesser has had too much: stratum 0 has not begun
        length = -(due // part)
        next_item, next_length, next_over = _item(np.uint64(0), due + length * part, part, whole, key, -1, False)
        return num, -1, _State(forced, 0, length, _NO_ITEM, next_length, next_item, next_over)
    # The current stratum, its cells that are over, and the units between its begin and that of its first cell.
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
    next_item, next_length, next_over = _item(_word(stratum + 1), over, part, whole, key, -1, is_taken)
    num += stratum + (item < offset)
    return num, stratum, _State(forced, offset, length, item, next_length, next_item, next_over)


def _word(stratum: int) -> np.uint64:
    """Returns the number of a stratum modulo 2^64."""
    return np.uint64(stratum & _MASK)


@kernel_or()
def _fill_keys(key: Any, keys_out: Any) -> None:
    """Writes a key for each split: uint64 [splits]."""
    for i in range(len(keys_out)):
        keys_out[i] = mix(key ^ mix(np.uint64(i) + GOLDEN))


@kernel_or()
def _item(stratum: Any, rest: Any, part: Any, whole: Any, key: Any, cut: Any, is_taken: Any) -> Any:
    """Chooses the lesser's cell of a stratum.

    Args:
        stratum: number of the stratum, modulo 2^64.
        rest: units between the begin of the stratum and that of the first cell that begins in it, in [0, part).
        part: as in `_Split`.
        whole: as in `_Split`.
        key: key of the split.
        cut: number of the stratum's cells that are before the first position, because a debt is due; -1 if none is.
        is_taken: whether the previous stratum takes the cell that lies in both.

    Returns:
        The cell, counted from the first that begins in the stratum; -1 is the cell before it, which lies in the
        previous stratum too. The number of cells that begin in the stratum. The units between the begin of the next
        stratum and that of the first cell that begins there.
    """
    length = (whole - rest + part - 1) // part
    return _chosen(stratum, rest, part, whole, key, cut, is_taken, length)


@inlined
def _chosen(stratum: Any, rest: Any, part: Any, whole: Any, key: Any, cut: Any, is_taken: Any, length: Any) -> Any:
    """Does the work of `_item`; `length` is the number of cells that begin in the stratum."""
    over = rest + length * part - whole
    word = mix(key ^ (stratum * GOLDEN))
    at = np.float64(word >> _U32) * _OF_32_BITS * whole  # a random unit of the stratum
    inner = np.float64(word & _LOW_32) * _OF_32_BITS  # in [0, 1): chooses among the cells inside the stratum
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
    """Deals the next N positions to components.

    From the root down, every split partitions its positions, in their order: first the lesser's, then the greater's.

    Args:
        root: `SplitTree.root`.
        children: `SplitTree.children`.
        units: `SplitTree.units`.
        keys: `SplitTree.keys`.
        states: states that `SplitTree.state_at` returned.
        strata: strata that `SplitTree.state_at` returned.
        rests: what the caps leave, as `SplitTree.state_at` returned it.
        components_out: receives the component of each position: int32 [N].
        numbers_out: receives, for each position, the number of the component's earlier ones: uint32 [N].
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
    """Marks which of a split's next cells are the lesser's, given its state and stratum."""
    num = len(is_lesser)
    first = min(state[_FORCED], num)
    for i in range(num):
        is_lesser[i] = i < first
    begin = first - state[_OFFSET]  # the stratum's begin, as an index of `is_lesser`; below 0 if it is before
    item, length = state[_ITEM], state[_LENGTH]
    next_item, next_length, next_over = state[_NEXT_ITEM], state[_NEXT_LENGTH], state[_NEXT_OVER]
    least = max(whole // max(part, 1), 1)
    while begin < num:
        if item >= -1 and first <= begin + item < num:
            is_lesser[begin + item] = 1
        begin += length
        if begin - 1 < num and next_item == -1:
            is_lesser[begin - 1] = 1
        stratum += _U1
        item, length, over = next_item, next_length, next_over
        after = least if over + least * part >= whole else least + 1
        is_taken = over > 0 and item == length - 1
        next_item, next_length, next_over = _chosen(
            stratum + _U1, over, part, whole, key, np.int64(-1), is_taken, np.int64(after)
        )


@kernel_part
def _cap(lesser_left: Any, greater_left: Any, is_lesser: Any) -> None:
    """Gives the cells of a side that has reached its cap to the other; the first two are what caps leave each side."""
    for i in range(len(is_lesser)):
        if is_lesser[i]:
            is_lesser[i] = lesser_left > 0
        else:
            is_lesser[i] = greater_left == 0
        if is_lesser[i]:
            lesser_left -= 1
        else:
            greater_left -= 1


@kernel_part
def _partition(positions: Any, begin: Any, end: Any, is_lesser: Any, buffer: Any) -> Any:
    """Moves the lesser's positions of a split to the front of its range, and returns where the greater's begin."""
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
    """Gives the positions with indices [begin, end) to a node: a component, or a split that is dealt later."""
    if node >= 0:
        begins[node], ends[node] = begin, end
        return
    for i in range(begin, end):
        position = positions[i]
        components_out[position], numbers_out[position] = ~node, i - begin
