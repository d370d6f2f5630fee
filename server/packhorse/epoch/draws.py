"""Permuting many values at once, each with its own parameters: draws from pools, and positions.

A block is BLOCK values that go through the rounds of `permutation` together, so that a round compiles to vector
instructions. Six rounds are a pass: sizes from SMALL on take one, smaller ones two, and those below TINY five. Owns the
layout of blocks, and the kernels that take them through all rounds. Leaves the arithmetic of a round to `permutation`,
the instructions that write blocks to `vector_instructions`, and which values are drawn to `plan_kernels`.
"""

from typing import Any, NamedTuple

import numpy as np

from packhorse.compiling import inlined, kernel_or, kernel_part
from packhorse.epoch.permutation import (
    FORM,
    KEYS,
    OFFSET,
    ROUNDS,
    SIZE,
    SMALL,
    TINY,
    cell_at,
    column_of,
    extra_passes,
    flipped,
    line_of,
    permuted,
    rotated,
    rotation_of,
    round_key,
    walked,
)
from packhorse.epoch.vector_instructions import count_lanes, fill_lanes

BLOCK = 512
"""Values in a block; their parameters then fit the first-level cache of a core."""

MOST_IN_NARROW_WORDS = 2**31
"""The largest pool that is permuted in words of 32 bits; the rectangle of its permutation is a little larger."""

_CHECKED_AT_ONCE = np.uint64(16)
"""Values that are checked together for more passes; a divisor of BLOCK."""
_LAST = np.uint64(BLOCK - 1)
_U0, _U1, _U32 = np.uint64(0), np.uint64(1), np.uint64(32)
_0, _1, _ROUNDS = np.uint32(0), np.uint32(1), np.uint32(ROUNDS)

# A block is one array, uint32 [6 * BLOCK], of six parts that begin at these indices: line and column of each value, and
# the parameters of its permutation. In one array the compiler knows how far apart the parts are.
_LINES, _COLUMNS, _SHIFTS, _NUM_LINES, _KEYS, _STEPS = (np.uint64(part * BLOCK) for part in range(6))

# The draws of a block are another array, words [3 * BLOCK], of three parts: size and start of each draw's pool, and the
# draw itself.
_SIZES, _OFFSETS, _VALUES = (np.uint64(part * BLOCK) for part in range(3))


@inlined
def _set_value(block: Any, s: Any, value: Any) -> None:
    """Writes the line and column of a value to index s of a block."""
    block[_LINES + s] = line_of(value, block[_SHIFTS + s])
    block[_COLUMNS + s] = column_of(value, block[_SHIFTS + s])


@inlined
def _value(block: Any, s: Any) -> Any:
    """Returns the value at index s of a block, from its line and column."""
    return cell_at(block[_LINES + s], block[_COLUMNS + s], block[_SHIFTS + s])


@kernel_part
def _six_rounds_each(block: Any, num: Any, rounds: Any) -> None:
    """Takes the first `num` values of a block through six rounds.

    Each round is a separate loop: its iterations are short and independent, so they compile to vector instructions.
    This takes a fraction of the time of one loop over all six rounds. `rounds` is always 6; as an argument it keeps the
    compiler from unrolling the rounds.
    """
    for number in range(0, rounds, 2):
        for s in range(num):
            key, num_lines = round_key(block[_KEYS + s], block[_STEPS + s], number), block[_NUM_LINES + s]
            block[_LINES + s] = rotated(block[_LINES + s], rotation_of(block[_COLUMNS + s], key, num_lines), num_lines)
        for s in range(num):
            key = round_key(block[_KEYS + s], block[_STEPS + s], number + 1)
            block[_COLUMNS + s] ^= flipped(block[_LINES + s], key, block[_SHIFTS + s])


class Draws(NamedTuple):
    """Arrays for draws that are permuted together; a kernel makes them once in a call, by `no_draws`."""

    block: Any
    """Values with the parameters of their permutations, in the parts from _LINES on: uint32 [6 * BLOCK]."""
    words: Any
    """Size and start of each draw's pool, and the draw, in the parts from _SIZES on: [3 * BLOCK]. σ(draw) replaces it.

    Words are uint32 if the pools' sizes and starts fit 31 bits, so that twice as many fit a vector instruction, else
    uint64.
    """
    passes: Any
    """Number of the pass (six rounds) that each value has had last: uint32 [BLOCK]."""
    unfinished: Any
    """Indices of the values that need more passes: uint64 [BLOCK]."""


@inlined
def no_draws(words: Any) -> Any:
    """Returns arrays for BLOCK draws of any pools, with words of the type of `words`."""
    return Draws(
        np.empty(6 * BLOCK, np.uint32),
        np.empty(3 * BLOCK, words.dtype),
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.uint64),
    )


@inlined
def set_draws(draws: Any, s: Any, table: Any, row: Any, first: Any) -> None:
    """Writes LANES draws from one pool: first, first + 1, …, from index s of a block on; s is at most BLOCK - LANES.

    The pool's parameters are a row of `table`. If fewer draws are needed, the next call overwrites the others, or
    `permute_pools` leaves them out by its `num`.
    """
    block, words = draws.block, draws.words
    form, keys = table[row, FORM], table[row, KEYS]  # each is two numbers, in its low and its high 32 bits
    fill_lanes(block, _SHIFTS + s, np.uint32(form))
    fill_lanes(block, _NUM_LINES + s, np.uint32(form >> _U32))
    fill_lanes(block, _KEYS + s, np.uint32(keys))
    fill_lanes(block, _STEPS + s, np.uint32(keys >> _U32))
    fill_lanes(words, _SIZES + s, table[row, SIZE])
    fill_lanes(words, _OFFSETS + s, table[row, OFFSET])
    count_lanes(words, _VALUES + s, first)


@kernel_part
def permute_pools(draws: Any, num: Any, entries: Any) -> None:
    """Writes the pool index, offset + σ(draw), of the first `num` draws to `entries`: words [num].

    Some values need more than six rounds: those of small permutations, and those that landed at or beyond size. They
    are collected at the front of the block and go through the same loops again. They are rare, so _CHECKED_AT_ONCE
    values are checked together. The draws are overwritten.
    """
    block, words, passes, unfinished = draws
    for s in range(num):
        _set_value(block, s, words[_VALUES + s])
    _six_rounds_each(block, num, ROUNDS)
    for s in range(num):
        words[_VALUES + s] = _value(block, s)
    # If the first, middle and last permutation are small, most of the block's probably are.
    middle, last = num >> _U1, (num - _U1) & _LAST  # & _LAST keeps it in the block if `num` is 0
    least = SMALL  # permutations of this size or more have had all their passes
    if (words[_SIZES] < SMALL) & (words[_SIZES + middle] < SMALL) & (words[_SIZES + last] < SMALL):
        _six_more_where_small(block, words, passes, num)
        least = TINY
    num_unfinished = _collect(words, passes, unfinished, num, least)
    for i in range(num_unfinished):
        s = unfinished[i]
        passes[s] = _move(block, i, s, passes[s], words[_SIZES + s])
    while num_unfinished:
        _six_rounds_each(block, num_unfinished, ROUNDS)
        num_left = _U0  # values that need passes yet again
        for i in range(num_unfinished):
            s = unfinished[i]
            words[_VALUES + s] = _value(block, i)
            is_last = passes[s] >= extra_passes(words[_SIZES + s])
            passes[s] = _move(block, num_left, i, passes[s], words[_SIZES + s])
            unfinished[num_left] = s
            num_left += np.uint64((not is_last) | (words[_VALUES + s] >= words[_SIZES + s]))
        num_unfinished = num_left
    for s in range(num):
        entries[s] = words[_VALUES + s] + words[_OFFSETS + s]


@kernel_part
def _six_more_where_small(block: Any, words: Any, passes: Any, num: Any) -> None:
    """Takes the values of small permutations through their second pass, in place; other values do not change.

    If most permutations of a block are small, this takes half the time of collecting their values.
    """
    for s in range(num):
        passes[s] = np.uint32(words[_SIZES + s] < SMALL)
        block[_KEYS + s] = round_key(block[_KEYS + s], block[_STEPS + s], _ROUNDS * passes[s])
    _six_rounds_each(block, num, ROUNDS)
    for s in range(num):
        words[_VALUES + s] = _value(block, s) if passes[s] else words[_VALUES + s]
        _set_value(block, s, words[_VALUES + s])


@inlined
def _collect(words: Any, passes: Any, unfinished: Any, num: Any, least: Any) -> Any:
    """Writes to `unfinished` and `passes` which values need more passes; returns the number of these values.

    Permutations of size `least` or more have had all their passes, so they need more only for values at or beyond size.
    """
    num_unfinished = _U0
    for first in range(_U0, num, _CHECKED_AT_ONCE):
        is_any = False
        for i in range(_CHECKED_AT_ONCE):  # also beyond `num`: what lies there is in the block, and taken out below
            size = words[_SIZES + first + i]
            is_any |= (size < least) | (words[_VALUES + first + i] >= size)
        if is_any:
            for s in range(first, min(first + _CHECKED_AT_ONCE, num)):
                size = words[_SIZES + s]
                # With `least` TINY, small ones have had their second pass, number 1; all others have had pass 0 only.
                passes[s] = np.uint32((size < SMALL) & (least != SMALL))
                unfinished[num_unfinished] = s
                num_unfinished += np.uint64((size < least) | (words[_VALUES + s] >= size))
    return num_unfinished


@kernel_part
def _move(block: Any, to: Any, s: Any, last_pass: Any, size: Any) -> Any:
    """Copies the value at index s of a block to index `to`, with the key of its next pass; returns that pass's number.

    `last_pass` is the pass that the value has had last; `size` is the size of its permutation.
    """
    next_pass = last_pass + _1 if last_pass < extra_passes(size) else _0
    block[_LINES + to], block[_COLUMNS + to] = block[_LINES + s], block[_COLUMNS + s]
    block[_SHIFTS + to], block[_NUM_LINES + to] = block[_SHIFTS + s], block[_NUM_LINES + s]
    step = block[_STEPS + s]
    block[_STEPS + to] = step
    # Back to pass 0 the difference is negative, which is right in arithmetic modulo 2^32.
    block[_KEYS + to] = round_key(block[_KEYS + s], step, _ROUNDS * np.uint32(next_pass - last_pass))
    return np.uint32(next_pass)


def _permute_positions_plainly(row: Any, positions: Any, out: Any) -> None:
    out[:] = permuted(row, positions.astype(np.uint64))


@kernel_or(_permute_positions_plainly)
def permute_positions(row: Any, positions: Any, out: Any) -> None:
    """Writes out[p] = σ(positions[p]), for all under one parameter row; positions and out are int64 [N]."""
    block = np.empty(6 * BLOCK, np.uint32)
    shift, num_lines = np.uint32(row[FORM]), np.uint32(row[FORM] >> _U32)
    key, step = np.uint32(row[KEYS]), np.uint32(row[KEYS] >> _U32)
    for s in range(_U0, np.uint64(min(BLOCK, len(positions)))):
        block[_SHIFTS + s], block[_NUM_LINES + s], block[_STEPS + s] = shift, num_lines, step
    for first in range(0, len(positions), BLOCK):
        num = np.uint64(min(BLOCK, len(positions) - first))
        for s in range(num):
            _set_value(block, s, np.uint64(positions[first + s]))
        for pass_number in range(extra_passes(row[SIZE]) + 1):
            for s in range(num):
                block[_KEYS + s] = round_key(key, step, ROUNDS * pass_number)
            _six_rounds_each(block, num, ROUNDS)
        for s in range(num):
            out[first + s] = np.int64(walked(row, _value(block, s)))
