"""Values that are permuted together, each under parameters of its own: draws from pools, and positions.

Owns the blocks in which they go through the rounds of `permutation`, many at once; leaves the rounds to it, and what is
drawn to the kernels.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from packhorse.epoch._lanes import count_lanes, fill_lanes
from packhorse.epoch.permutation import (
    FORM,
    KEY_32,
    KEYS,
    NUM_LINES_32,
    OFFSET,
    ROW_WIDTH,
    SHIFT_32,
    SIZE,
    SMALL,
    STEP_32,
    TINY,
    cell_at,
    column_of,
    extra_passes,
    flipped,
    line_of,
    rotated,
    round_key,
    turn_of,
    walked,
)

BLOCK = 512
"""Values that are permuted together: their parameters then fit a core's first cache."""

MOST_IN_NARROW_WORDS = 2**31
"""Pools of up to so many entries are permuted in words of 32 bits: a permutation's rectangle is a little larger."""

_LOOKED_AT_ONCE = np.uint64(16)
"""A divisor of BLOCK."""

_LAST = np.uint64(BLOCK - 1)
_U0, _U1, _U32 = np.uint64(0), np.uint64(1), np.uint64(32)
_0, _1, _6 = np.uint32(0), np.uint32(1), np.uint32(6)


class _Block(NamedTuple):
    """Values that go through six rounds together, each under parameters of its own: uint32 [BLOCK] each."""

    lines: Any
    columns: Any
    shifts: Any
    num_lines: Any
    keys: Any
    steps: Any


@numba.njit(inline="always")
def _block() -> Any:
    return _Block(_words(), _words(), _words(), _words(), _words(), _words())


@numba.njit(inline="always")
def _words() -> Any:
    return np.empty(BLOCK, dtype=np.uint32)


@numba.njit(inline="always")
def _set_parameters(block: Any, s: Any, table_32: Any, row: Any) -> None:
    """Copies a row's parameters to a value of a block."""
    block.shifts[s] = table_32[row, SHIFT_32]
    block.num_lines[s] = table_32[row, NUM_LINES_32]
    block.keys[s] = table_32[row, KEY_32]
    block.steps[s] = table_32[row, STEP_32]


@numba.njit(inline="always")
def _set_value(block: Any, s: Any, value: Any) -> None:
    block.lines[s] = line_of(value, block.shifts[s])
    block.columns[s] = column_of(value, block.shifts[s])


@numba.njit(inline="always")
def _value(block: Any, s: Any) -> Any:
    return cell_at(block.lines[s], block.columns[s], block.shifts[s])


@numba.njit(inline="always")
def _turn_lines(block: Any, number: int, num: Any) -> None:
    lines, columns, num_lines, keys, steps = block.lines, block.columns, block.num_lines, block.keys, block.steps
    for s in range(num):
        turn = turn_of(columns[s], round_key(keys[s], steps[s], number), num_lines[s])
        lines[s] = rotated(lines[s], turn, num_lines[s])


@numba.njit(inline="always")
def _flip_columns(block: Any, number: int, num: Any) -> None:
    lines, columns, shifts, keys, steps = block.lines, block.columns, block.shifts, block.keys, block.steps
    for s in range(num):
        columns[s] ^= flipped(lines[s], round_key(keys[s], steps[s], number), shifts[s])


@numba.njit(nogil=True, cache=True)
def _six_rounds_each(block: Any, num: Any) -> None:
    """Six rounds of the first values of a block.

    One loop for each round: its iterations are short and independent, so they compile to vector instructions and many
    are in flight at once, which takes a fraction of the time of one loop over all six.
    """
    _turn_lines(block, 0, num)
    _flip_columns(block, 1, num)
    _turn_lines(block, 2, num)
    _flip_columns(block, 3, num)
    _turn_lines(block, 4, num)
    _flip_columns(block, 5, num)


class Draws(NamedTuple):
    """Draws from pools that are permuted together; made once a call of a kernel by `no_draws`.

    Words are uint32 where the pools' sizes and places fit 31 bits, so that twice as many fit a vector instruction, or
    else uint64.
    """

    block: Any
    sizes: Any
    """Of each draw's pool: words [BLOCK]."""
    offsets: Any
    """Where each draw's pool begins: words [BLOCK]."""
    values: Any
    """The draws, then what they are permuted to: words [BLOCK]."""
    turns: Any
    """How many times six rounds were done in this pass: uint32 [BLOCK]."""
    still: Any
    """Values that are not at their end: uint64 [BLOCK]."""


@numba.njit(inline="always")
def no_draws(words: Any) -> Any:
    """Room for BLOCK draws of any pools.

    Args:
        words: uint32 or uint64 [0], whose type is that of words.
    """
    return Draws(
        _block(),
        np.empty(BLOCK, words.dtype),
        np.empty(BLOCK, words.dtype),
        np.empty(BLOCK, words.dtype),
        _words(),
        np.empty(BLOCK, np.uint64),
    )


@numba.njit(inline="always")
def set_draws(draws: Any, s: Any, table: Any, row: Any, first: Any) -> None:
    """Writes LANES draws of one pool: first, first + 1, … from index s on.

    Args:
        draws: from `no_draws`.
        s: uint64, at most BLOCK - LANES.
        table: uint64 [n, ROW_WIDTH], parameter rows.
        row: uint64, the pool's row.
        first: uint64, the first draw. Those beyond what the caller wants are overwritten, or left out of `num`.
    """
    block = draws.block
    form, keys = table[row, FORM], table[row, KEYS]
    fill_lanes(block.shifts, s, np.uint32(form))
    fill_lanes(block.num_lines, s, np.uint32(form >> _U32))
    fill_lanes(block.keys, s, np.uint32(keys))
    fill_lanes(block.steps, s, np.uint32(keys >> _U32))
    fill_lanes(draws.sizes, s, table[row, SIZE])
    fill_lanes(draws.offsets, s, table[row, OFFSET])
    count_lanes(draws.values, s, first)


@numba.njit(nogil=True, cache=True)
def permute_pools(draws: Any, num: Any, entries: Any) -> None:
    """Writes the first draws' indices into the pool array, offset + σ(draw): words [num]. Overwrites the draws.

    Values that need more rounds, because their permutation is small or because they landed beyond its size, are
    collected and go through the same loops again. Most have few of them around, so they are looked for
    _LOOKED_AT_ONCE at a time.
    """
    block, sizes, offsets, values, turns, still = draws
    for s in range(num):
        _set_value(block, s, values[s])
    _six_rounds_each(block, num)
    for s in range(num):
        values[s] = _value(block, s)
    middle, last = num >> _U1, (num - _U1) & _LAST
    if (sizes[0] < SMALL) & (sizes[middle] < SMALL) & (sizes[last] < SMALL):  # then most of them will be
        _six_more_where_small(draws, num)
        num_still = _collect(draws, num, TINY)
    else:
        num_still = _collect(draws, num, SMALL)
    for i in range(num_still):
        s = still[i]
        turns[s] = _move(block, i, s, turns[s], sizes[s])
    while num_still:
        _six_rounds_each(block, num_still)
        num_left = _U0
        for i in range(num_still):
            s = still[i]
            values[s] = _value(block, i)
            is_last = turns[s] >= extra_passes(sizes[s])
            turns[s] = _move(block, num_left, i, turns[s], sizes[s])
            still[num_left] = s
            num_left += np.uint64((not is_last) | (values[s] >= sizes[s]))
        num_still = num_left
    for s in range(num):
        entries[s] = values[s] + offsets[s]


@numba.njit(nogil=True, cache=True)
def _six_more_where_small(draws: Any, num: Any) -> None:
    """The second six rounds of small permutations, where their values stand; the others' values stay as they are.

    For many of them that takes half the time of collecting them.
    """
    block, sizes, values, turns = draws.block, draws.sizes, draws.values, draws.turns
    for s in range(num):
        turns[s] = np.uint32(sizes[s] < SMALL)
        block.keys[s] = round_key(block.keys[s], block.steps[s], _6 * turns[s])
    _six_rounds_each(block, num)
    for s in range(num):
        values[s] = _value(block, s) if turns[s] else values[s]
        _set_value(block, s, values[s])


@numba.njit(inline="always")
def _collect(draws: Any, num: Any, least: Any) -> Any:
    """Finds the values that need more rounds, and returns how many there are.

    Args:
        draws: whose `still` gets them, and `turns` how many times six rounds they have had after the first.
        num: uint64, how many draws there are.
        least: uint64; permutations of at least this size have had all their rounds.
    """
    sizes, values, turns, still = draws.sizes, draws.values, draws.turns, draws.still
    num_still = _U0
    for first in range(_U0, num, _LOOKED_AT_ONCE):
        is_any = False
        for i in range(_LOOKED_AT_ONCE):
            is_any |= (sizes[first + i] < least) | (values[first + i] >= sizes[first + i])
        if is_any:
            for s in range(first, min(first + _LOOKED_AT_ONCE, num)):
                turns[s] = np.uint32((sizes[s] < SMALL) & (least != SMALL))
                still[num_still] = s
                num_still += np.uint64((sizes[s] < least) | (values[s] >= sizes[s]))
    return num_still


@numba.njit(inline="always")
def _move(block: Any, to: Any, s: Any, turn: Any, size: Any) -> Any:
    """Moves a value of a block, with the keys of its next six rounds, and returns which these are."""
    following = turn + _1 if turn < extra_passes(size) else _0
    block.lines[to], block.columns[to] = block.lines[s], block.columns[s]
    block.shifts[to], block.num_lines[to], block.steps[to] = block.shifts[s], block.num_lines[s], block.steps[s]
    block.keys[to] = round_key(block.keys[s], block.steps[s], _6 * np.uint32(following - turn))
    return np.uint32(following)


@numba.njit(nogil=True, cache=True)
def permute_positions(row: Any, positions: Any, out: Any) -> None:
    """out[p] = σ(positions[p]), all under one parameter row; positions and out are int64 [N]."""
    block, table_32 = _block(), row.view(np.uint32).reshape(1, 2 * ROW_WIDTH)
    for s in range(min(BLOCK, len(positions))):
        _set_parameters(block, s, table_32, 0)
    for first in range(0, len(positions), BLOCK):
        num = min(BLOCK, len(positions) - first)
        for s in range(num):
            _set_value(block, s, np.uint64(positions[first + s]))
        for turn in range(extra_passes(row[SIZE]) + 1):
            for s in range(num):
                block.keys[s] = round_key(table_32[0, KEY_32], block.steps[s], 6 * turn)
            _six_rounds_each(block, num)
        for s in range(num):
            out[first + s] = np.int64(walked(row, _value(block, s)))
