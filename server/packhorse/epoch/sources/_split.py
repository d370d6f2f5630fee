"""One split of positions between two sides, so that each stays near its exact share after every position.

Two sides, the lesser and the greater, share a sequence of positions, here called cells. The lesser has a share p ≤ 1/2.
T(m) = debt + m·p bins are due to it after m cells. Stratum k is the cells during which T goes from k to k + 1. In each
stratum the lesser gets exactly one cell, its item, which a key chooses. So after m cells it has had ⌊T(m)⌋ or ⌈T(m)⌉
bins, which is less than one off. A cell at the edge of two strata may be the item of only one of them. Hashes of k and
of k - 1 decide this, so that every cell is taken with probability p. So nothing is periodic: for every divisor, all
remainders of positions get the same shares.

A debt is what was due to a side before and what it did not get. A split begins with T(0) = debt; if that is 1 or more,
its first cells are forced: they are the lesser's. A cap is the most that a side gives. Once one side has reached its
cap, the other gets all cells.

Owns the split of two nodes (`split_of`), where it is after m cells (`progress`), and the loops that mark the lesser's
next cells (`mark_lessers`, `apply_caps`). Leaves splits between more than two components to `_split_tree`.
"""

from typing import Any, NamedTuple

import numpy as np

from packhorse.compiling import inlined, kernel_or, kernel_part
from packhorse.epoch.permutation import GOLDEN, mix

NO_CAP = 2**62
"""A cap that is never reached."""

DEBT_UNITS = 2**32
"""Debts are counted in this fraction of a bin: a debt of 2^32 is one bin."""

_BITS = 59
"""Bits to which the sum of a split's weights is scaled. If it has more, the weights are rounded, and a share is wrong
by less than 2^-59: a hundredth of a bin after 5 · 10^15 positions."""

_FORCED, _OFFSET, _LENGTH, _ITEM, _NEXT_LENGTH, _NEXT_ITEM, _NEXT_OVER = range(7)
"""Columns of `State` as a row of numbers, in the order of its fields."""
_NO_ITEM = -2  # a `State.item`: the stratum has no cell for the lesser
_U1, _U32, _LOW_32 = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)
_TO_FRACTION = 2.0**-32  # makes a number of 32 bits a fraction in [0, 1)


class Node(NamedTuple):
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


class Split(NamedTuple):
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


class State(NamedTuple):
    """Where a split is before its next cell; with the stratum's number it is all that `mark_lessers` needs to go on.

    `mark_lessers` reads it as a row of numbers, in the columns `_FORCED` to `_NEXT_OVER`.
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


class Progress(NamedTuple):
    """Where a split is after its first m cells."""

    num_lesser: int
    """Number of these cells that the lesser got."""
    num_greater: int
    """Number of these cells that the greater got."""
    stratum: np.uint64
    """Number of the next cell's stratum, modulo 2^64."""
    state: State


def split_of(lesser: Node, greater: Node) -> Split:
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
    return Split(
        lesser=lesser.number,
        greater=greater.number,
        part=part,
        whole=whole,
        debt=debt,
        forced=forced,
        caps=(lesser.cap, greater.cap),
    )


def progress(split: Split, key: np.uint64, m: int) -> Progress:
    """Returns where a split is after its first m cells; the key decides which cells the lesser gets."""
    lesser_cap, greater_cap = split.caps
    num_lesser, stratum, state = _progress_without_caps(split, key, m)
    if lesser_cap < NO_CAP:
        num_lesser = min(num_lesser, lesser_cap)
    if greater_cap < NO_CAP:
        num_lesser = max(num_lesser, m - greater_cap)
    return Progress(num_lesser, m - num_lesser, _modulo(stratum), state)


def _progress_without_caps(split: Split, key: np.uint64, m: int) -> tuple[int, int, State]:
    """Returns `num_lesser`, `stratum` (not modulo 2^64) and `state` of the `Progress` of a split without caps."""
    part, whole, forced = split.part, split.whole, max(split.forced - m, 0)
    num_lesser, m = min(m, split.forced), max(m - split.forced, 0)
    if not part:
        never = State(
            forced=forced,
            offset=0,
            length=NO_CAP,
            item=_NO_ITEM,
            next_length=NO_CAP,
            next_item=_NO_ITEM,
            next_over=0,
        )
        return num_lesser, 0, never  # stratum 0 never ends
    due = split.debt + m * part
    if due < 0:  # the lesser has had too much: stratum 0 has not begun
        length = -(due // part)
        next_item, next_length, next_over = _item(np.uint64(0), due + length * part, part, whole, key, -1, False)
        waiting = State(
            forced=forced,
            offset=0,
            length=length,
            item=_NO_ITEM,
            next_length=next_length,
            next_item=next_item,
            next_over=next_over,
        )
        return num_lesser, -1, waiting
    # The current stratum, its cells that are over, and the units between its begin and that of its first cell.
    stratum, offset = divmod(due, whole)
    offset, rest = divmod(offset, part)
    cut = split.debt // part if split.debt > 0 else -1  # of stratum 0, see `_item`
    is_taken = False  # whether the item of the stratum before is its last cell, which lies in both
    if stratum and rest:
        cut_before = cut if stratum == 1 else -1
        item, length, over = _item(_modulo(stratum - 1), (rest + whole) % part, part, whole, key, cut_before, False)
        is_taken = over > 0 and item == length - 1
    item, length, over = _item(_modulo(stratum), rest, part, whole, key, -1 if stratum else cut, is_taken)
    is_taken = over > 0 and item == length - 1
    next_item, next_length, next_over = _item(_modulo(stratum + 1), over, part, whole, key, -1, is_taken)
    num_lesser += stratum + (item < offset)
    state = State(
        forced=forced,
        offset=offset,
        length=length,
        item=item,
        next_length=next_length,
        next_item=next_item,
        next_over=next_over,
    )
    return num_lesser, stratum, state


def _modulo(stratum: int) -> np.uint64:
    """Returns the number of a stratum modulo 2^64."""
    return np.uint64(stratum % 2**64)


@kernel_or()
def _item(stratum: Any, rest: Any, part: Any, whole: Any, key: Any, cut: Any, is_taken: Any) -> Any:
    """Chooses the lesser's cell of a stratum.

    Args:
        stratum: number of the stratum, modulo 2^64.
        rest: units between the begin of the stratum and that of the first cell that begins in it, in [0, part).
        part: as in `Split`.
        whole: as in `Split`.
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
    random_bits = mix(key ^ (stratum * GOLDEN))
    unit = np.float64(random_bits >> _U32) * _TO_FRACTION * whole  # a random unit of the stratum
    inner = np.float64(random_bits & _LOW_32) * _TO_FRACTION  # chooses among the cells inside the stratum
    if cut >= 0:
        return min(cut + np.int64(inner * (length - cut)), length - 1), length, over
    if over > 0 and unit >= whole - (part - over):
        return length - 1, length, over
    if rest > 0 and not is_taken and unit * (whole - part + rest) < np.float64(rest) * whole:
        return -1, length, over
    num_inner = length - (1 if over > 0 else 0)
    return min(np.int64(inner * num_inner), num_inner - 1), length, over


@kernel_part
def mark_lessers(state: Any, stratum: Any, part: Any, whole: Any, key: Any, is_lesser: Any) -> None:
    """Marks which of a split's next cells are the lesser's, given its state and stratum."""
    num_cells = len(is_lesser)
    num_forced = min(state[_FORCED], num_cells)
    for i in range(num_cells):
        is_lesser[i] = i < num_forced
    begin = num_forced - state[_OFFSET]  # the stratum's begin, as an index of `is_lesser`; below 0 if it is before
    item, length = state[_ITEM], state[_LENGTH]
    next_item, next_length, next_over = state[_NEXT_ITEM], state[_NEXT_LENGTH], state[_NEXT_OVER]
    shortest = max(whole // max(part, 1), 1)  # so many cells begin in a stratum, or one more
    while begin < num_cells:
        if item >= -1 and num_forced <= begin + item < num_cells:
            is_lesser[begin + item] = 1
        begin += length
        if begin - 1 < num_cells and next_item == -1:
            is_lesser[begin - 1] = 1
        stratum += _U1
        item, length, over = next_item, next_length, next_over
        next_length = shortest if over + shortest * part >= whole else shortest + 1
        is_taken = over > 0 and item == length - 1
        next_item, next_length, next_over = _chosen(
            stratum + _U1, over, part, whole, key, np.int64(-1), is_taken, np.int64(next_length)
        )


@kernel_part
def apply_caps(lesser_left: Any, greater_left: Any, is_lesser: Any) -> None:
    """Gives the cells of a side that has reached its cap to the other. `…_left` is how many bins a cap still allows."""
    for i in range(len(is_lesser)):
        if is_lesser[i]:
            is_lesser[i] = lesser_left > 0
        else:
            is_lesser[i] = greater_left == 0
        if is_lesser[i]:
            lesser_left -= 1
        else:
            greater_left -= 1
