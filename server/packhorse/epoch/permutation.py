"""Keyed bijections on [0, size) that are computed one element at a time.

Owns the permutation itself and its inverse, as kernels for the hot path and as `Permutation` for everyone else.

The network is Feistel's on a rectangle: x = (line << half_bits) | column with 2^half_bits columns and
ceil(size / 2^half_bits) lines. In turn the lines are rotated by a hash of the column and the columns xored with a hash
of the line, so each round can be undone; the few values of the rectangle beyond size are walked over (a value that
lands there is permuted again). The rectangle is at most 2^half_bits - 1 cells larger than size, hence walks are rare.
Six rounds scatter large sizes; small ones, whose halves have few bits to mix, take twelve, and tiny ones thirty.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (generalised Feistel network, cycle
walking). A round hashes a half of 32 bits at most, in arithmetic of 32 bits, with the constants of C. Wellons'
lowbias32; parameters come from splitmix64.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch._lanes import count_lanes, fill_lanes
from packhorse.epoch.keys import MAX_SEED
from packhorse.topology import checked_integer

SMALL_SIZE = 4096
"""Sizes below this take twelve rounds. Like every constant here frozen by golden vectors."""

TINY_SIZE = 16
"""Sizes below this take thirty rounds."""

MAX_SIZE = 2**62
"""Largest size: both halves then fit 32 bits."""

# Columns of a parameter row of uint64: what a permutation of one size under one key needs.
SIZE, OFFSET = 0, 1  # OFFSET is the owner's (a pool's start)
_FORM = 2  # 31 - half_bits, and above 32 bits the number of lines
_KEYS = 3  # the first round's key, and above 32 bits what each further round adds to it
ROW_WIDTH = 4
_SHIFT_32, _NUM_LINES_32, _KEY_32, _STEP_32 = 4, 5, 6, 7  # the same row read as uint32

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: what splitmix64 adds to its state before every draw."""

BLOCK = 512
"""Values that are permuted together: their parameters then fit a core's first cache."""

MOST_IN_NARROW_WORDS = 2**31
"""Pools of up to so many entries are permuted in words of 32 bits: a permutation's rectangle is a little larger."""

_LOOKED_AT_ONCE = np.uint64(16)
"""A divisor of BLOCK."""

_MULTIPLIER_A = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_B = np.uint64(0x94D049BB133111EB)
_HALF_A, _HALF_B = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_SMALL, _TINY = np.uint64(SMALL_SIZE), np.uint64(TINY_SIZE)
_U0, _U1, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (0, 1, 27, 30, 31, 32))
_0, _1, _6, _15, _31 = np.uint32(0), np.uint32(1), np.uint32(6), np.uint32(15), np.uint32(31)
_SIGN = np.int32(31)


@numba.njit(inline="always")
def mix(value: Any) -> Any:
    """splitmix64's finaliser: uint64 → uint64, every input bit reaches every output bit."""
    value = (value ^ (value >> _U30)) * _MULTIPLIER_A
    value = (value ^ (value >> _U27)) * _MULTIPLIER_B
    return value ^ (value >> _U31)


@numba.njit(inline="always")
def _hash_half(half: Any, key: Any) -> Any:
    """Hash of a half under a key: uint32, whose first bits are the best mixed ones."""
    value = np.uint32((half ^ key) * _HALF_A)
    return np.uint32((value ^ (value >> _15)) * _HALF_B)


@numba.njit(nogil=True, cache=True)
def fill_parameters(sizes: Any, offsets: Any, tweaks: Any, key: Any, table: Any) -> None:
    """Writes one parameter row for each permutation.

    Args:
        sizes: uint64 [n], each in [1, MAX_SIZE].
        offsets: uint64 [n], kept beside them for the owner.
        tweaks: uint64 [n], distinct within a key: permutations of other tweaks are independent.
        key: uint64, from `derive_key`.
        table: uint64 [n, ROW_WIDTH], written.
    """
    for i in range(len(sizes)):
        size = sizes[i]
        bits = _U0
        largest = size - _U1
        while largest >> bits:
            bits += _U1
        half_bits = bits >> _U1
        table[i, SIZE] = size
        table[i, OFFSET] = offsets[i]
        table[i, _FORM] = (_U31 - half_bits) | ((((size - _U1) >> half_bits) + _U1) << _U32)
        table[i, _KEYS] = mix(mix(key ^ mix(tweaks[i] + GOLDEN)) + GOLDEN) | (_U1 << _U32)  # an odd step


@numba.njit(inline="always")
def _turn(column: Any, key: Any, num_lines: Any) -> Any:
    """By how many lines a column is turned: uint32 in [0, num_lines)."""
    return np.uint32((np.uint64(_hash_half(column, key)) * np.uint64(num_lines)) >> _U32)


@numba.njit(inline="always")
def _rotate(line: Any, turn: Any, num_lines: Any) -> Any:
    """(line + turn) mod num_lines for line and turn of at most num_lines, without a branch: uint32."""
    over = np.int32(line + turn - num_lines)
    return np.uint32(np.uint32(over) + (np.uint32(over >> _SIGN) & num_lines))


@numba.njit(inline="always")
def _flip(line: Any, key: Any, shift: Any) -> Any:
    """Which bits of a column a line flips: uint32 of 31 - shift bits."""
    return np.uint32((_hash_half(line, key) >> _1) >> (shift & _31))


@numba.njit(inline="always")
def _round_key(key: Any, step: Any, number: Any) -> Any:
    return np.uint32(key + np.uint32(np.uint32(number) * step))


@numba.njit(inline="always")
def _half_bits(shift: Any) -> Any:
    """How many bits a column has, from 31 minus so many. The mask tells the compiler that they are below 32."""
    return np.uint64((_31 - shift) & _31)


@numba.njit(inline="always")
def _line_of(x: Any, shift: Any) -> Any:
    return np.uint32(x >> _half_bits(shift))


@numba.njit(inline="always")
def _column_of(x: Any, shift: Any) -> Any:
    return np.uint32(x & ((_U1 << _half_bits(shift)) - _U1))


@numba.njit(inline="always")
def _joined(line: Any, column: Any, shift: Any) -> Any:
    return (np.uint64(line) << _half_bits(shift)) | np.uint64(column)


@numba.njit(inline="always")
def _six_rounds(row: Any, x: Any, turn: Any) -> Any:
    shift, num_lines = np.uint32(row[_FORM]), np.uint32(row[_FORM] >> _U32)
    key, step = np.uint32(row[_KEYS]), np.uint32(row[_KEYS] >> _U32)
    line, column = _line_of(x, shift), _column_of(x, shift)
    for number in range(6 * turn, 6 * turn + 6, 2):
        line = _rotate(line, _turn(column, _round_key(key, step, number), num_lines), num_lines)
        column ^= _flip(line, _round_key(key, step, number + 1), shift)
    return _joined(line, column, shift)


@numba.njit(inline="always")
def _undo_six_rounds(row: Any, y: Any, turn: Any) -> Any:
    shift, num_lines = np.uint32(row[_FORM]), np.uint32(row[_FORM] >> _U32)
    key, step = np.uint32(row[_KEYS]), np.uint32(row[_KEYS] >> _U32)
    line, column = _line_of(y, shift), _column_of(y, shift)
    for number in range(6 * turn + 4, 6 * turn - 1, -2):
        column ^= _flip(line, _round_key(key, step, number + 1), shift)
        turned = _turn(column, _round_key(key, step, number), num_lines)
        line = _rotate(line, np.uint32(num_lines - turned), num_lines)
    return _joined(line, column, shift)


@numba.njit(inline="always")
def _extra_passes(size: Any) -> Any:
    """How many times six rounds follow the first six."""
    if size >= _SMALL:
        return 0
    return 1 if size >= _TINY else 4


@numba.njit(inline="always")
def _all_rounds(row: Any, x: Any) -> Any:
    for turn in range(_extra_passes(row[SIZE]) + 1):
        x = _six_rounds(row, x, turn)
    return x


@numba.njit(inline="always")
def _walked(row: Any, x: Any) -> Any:
    """From a value after all rounds to σ."""
    while x >= row[SIZE]:
        x = _all_rounds(row, x)
    return x


@numba.njit(inline="always")
def forward(row: Any, x: Any) -> Any:
    """σ(x): uint64 in [0, size) → uint64 in [0, size), under a parameter row (uint64 [ROW_WIDTH])."""
    return _walked(row, _all_rounds(row, x))


@numba.njit(inline="always")
def backward(row: Any, y: Any) -> Any:
    """σ⁻¹(y): undoes `forward`."""
    while True:
        for turn in range(_extra_passes(row[SIZE]), -1, -1):
            y = _undo_six_rounds(row, y, turn)
        if y < row[SIZE]:
            return y


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
    block.shifts[s] = table_32[row, _SHIFT_32]
    block.num_lines[s] = table_32[row, _NUM_LINES_32]
    block.keys[s] = table_32[row, _KEY_32]
    block.steps[s] = table_32[row, _STEP_32]


@numba.njit(inline="always")
def _set_value(block: Any, s: Any, value: Any) -> None:
    block.lines[s] = _line_of(value, block.shifts[s])
    block.columns[s] = _column_of(value, block.shifts[s])


@numba.njit(inline="always")
def _value(block: Any, s: Any) -> Any:
    return _joined(block.lines[s], block.columns[s], block.shifts[s])


@numba.njit(inline="always")
def _turn_lines(block: Any, number: int, num: Any) -> None:
    lines, columns, num_lines, keys, steps = block.lines, block.columns, block.num_lines, block.keys, block.steps
    for s in range(num):
        turn = _turn(columns[s], _round_key(keys[s], steps[s], number), num_lines[s])
        lines[s] = _rotate(lines[s], turn, num_lines[s])


@numba.njit(inline="always")
def _flip_columns(block: Any, number: int, num: Any) -> None:
    lines, columns, shifts, keys, steps = block.lines, block.columns, block.shifts, block.keys, block.steps
    for s in range(num):
        columns[s] ^= _flip(lines[s], _round_key(keys[s], steps[s], number), shifts[s])


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
    form, keys = table[row, _FORM], table[row, _KEYS]
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
    num_still = _U0
    for first in range(_U0, num, _LOOKED_AT_ONCE):
        is_any = False
        for i in range(_LOOKED_AT_ONCE):
            is_any |= (sizes[first + i] < _SMALL) | (values[first + i] >= sizes[first + i])
        if is_any:
            for s in range(first, min(first + _LOOKED_AT_ONCE, num)):
                turns[s] = _0
                still[num_still] = s
                num_still += np.uint64((sizes[s] < _SMALL) | (values[s] >= sizes[s]))
    for i in range(num_still):
        s = still[i]
        turns[s] = _move(block, i, s, turns[s], sizes[s])
    while num_still:
        _six_rounds_each(block, num_still)
        num_left = _U0
        for i in range(num_still):
            s = still[i]
            values[s] = _value(block, i)
            is_last = turns[s] >= _extra_passes(sizes[s])
            turns[s] = _move(block, num_left, i, turns[s], sizes[s])
            still[num_left] = s
            num_left += np.uint64((not is_last) | (values[s] >= sizes[s]))
        num_still = num_left
    for s in range(num):
        entries[s] = values[s] + offsets[s]


@numba.njit(inline="always")
def _move(block: Any, to: Any, s: Any, turn: Any, size: Any) -> Any:
    """Moves a value of a block, with the keys of its next six rounds, and returns which these are."""
    following = turn + _1 if turn < _extra_passes(size) else _0
    block.lines[to], block.columns[to] = block.lines[s], block.columns[s]
    block.shifts[to], block.num_lines[to], block.steps[to] = block.shifts[s], block.num_lines[s], block.steps[s]
    block.keys[to] = _round_key(block.keys[s], block.steps[s], _6 * np.uint32(following - turn))
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
        for turn in range(_extra_passes(row[SIZE]) + 1):
            for s in range(num):
                block.keys[s] = _round_key(table_32[0, _KEY_32], block.steps[s], 6 * turn)
            _six_rounds_each(block, num)
        for s in range(num):
            out[first + s] = np.int64(_walked(row, _value(block, s)))


@numba.njit(nogil=True, cache=True)
def _forward_many(row: Any, values: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = forward(row, values[i])


@numba.njit(nogil=True, cache=True)
def _backward_many(row: Any, values: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = backward(row, values[i])


class Permutation:
    """A keyed bijection on [0, size), in constant time and memory for each element.

    Args:
        size: number of elements, in [1, 2^62].
        key: in [0, 2^64), e.g. from `derive_key`.
        tweak: permutations of one key with different tweaks are independent.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, size: int, key: int, tweak: int = 0) -> None:
        for name, value, least, most in (
            ("size", size, 1, MAX_SIZE),
            ("key", key, 0, MAX_SEED),
            ("tweak", tweak, 0, MAX_SEED),
        ):
            checked_integer(name, value, least, most)
        self.size = size
        self.row: NDArray[np.uint64] = np.zeros((1, ROW_WIDTH), dtype=np.uint64)
        one = np.ones(1, dtype=np.uint64)
        fill_parameters(one * np.uint64(size), one * _U0, one * np.uint64(tweak), np.uint64(key), self.row)
        self.row = self.row[0]

    def forward(self, values: ArrayLike) -> NDArray[np.int64]:
        """Returns σ(values): int64, the shape of `values`, each in [0, size); a ValueError where one is outside."""
        return self._apply(_forward_many, values)

    def backward(self, values: ArrayLike) -> NDArray[np.int64]:
        """Returns σ⁻¹(values): int64, the shape of `values`, each in [0, size); a ValueError where one is outside."""
        return self._apply(_backward_many, values)

    def __call__(self, value: int) -> int:
        """Returns σ(value)."""
        return int(self.forward([value])[0])

    def inverse(self, value: int) -> int:
        """Returns σ⁻¹(value)."""
        return int(self.backward([value])[0])

    def _apply(self, kernel: Any, values: ArrayLike) -> NDArray[np.int64]:
        array = np.asarray(values, dtype=np.int64)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < self.size:
            raise ValueError(f"values must be in [0, {self.size}), got {int(array.min())} … {int(array.max())}")
        flat = np.ascontiguousarray(array).view(np.uint64).ravel()
        out = np.empty_like(flat)
        kernel(self.row, flat, out)
        return out.view(np.int64).reshape(array.shape)
