"""Keyed bijections on [0, size) that are computed one element at a time.

Owns the permutation itself and its inverse, as kernels for the hot path and as `Permutation` for everyone else.

The network is Feistel's on a rectangle: x = (line << half_bits) | column with 2^half_bits columns and
ceil(size / 2^half_bits) lines. In turn the lines are rotated by a hash of the column and the columns xored with a hash
of the line, so each round can be undone; the few values of the rectangle beyond size are walked over (a value that
lands there is permuted again). The rectangle is at most 2^half_bits - 1 cells larger than size, hence walks are rare.
Six rounds scatter large sizes; small ones, whose halves have few bits to mix, take twelve, and tiny ones thirty.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (generalised Feistel network, cycle
walking). The hashes are multiply-xorshift finalisers with the constants of splitmix64.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.keys import MAX_SEED
from packhorse.topology import checked_integer

SMALL_SIZE = 4096
"""Sizes below this take twelve rounds. Like every constant here frozen by golden vectors."""

TINY_SIZE = 16
"""Sizes below this take thirty rounds."""

MAX_SIZE = 2**62
"""Largest size: both halves then fit 32 bits."""

# Columns of a parameter row, one cache line of uint64: what a permutation of one size under one key needs.
SIZE, HALF_BITS, NUM_LINES, OFFSET = 0, 1, 2, 3  # OFFSET is the owner's (a pool's start)
FIRST_KEY = 4  # three words of two 32-bit round keys each, and a fourth that turns them into those of later rounds
ROW_WIDTH = 8

BLOCK = 512
"""Values that are permuted together: their parameters then fit a core's first cache."""

_MULTIPLIER_A = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_B = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW_32 = np.uint64(0xFFFFFFFF)
_SMALL, _TINY = np.uint64(SMALL_SIZE), np.uint64(TINY_SIZE)
_I63 = np.int64(63)
_U0, _U1, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (0, 1, 27, 30, 31, 32))


@numba.njit(inline="always")
def mix(value: Any) -> Any:
    """splitmix64's finaliser: uint64 → uint64, every input bit reaches every output bit."""
    value = (value ^ (value >> _U30)) * _MULTIPLIER_A
    value = (value ^ (value >> _U27)) * _MULTIPLIER_B
    return value ^ (value >> _U31)


@numba.njit(inline="always")
def _hash_half(half: Any, key: Any) -> Any:
    """Hash of a 32-bit half under a 32-bit key: uint64 in [0, 2^32)."""
    value = (half ^ key) * _MULTIPLIER_A
    value = (value ^ (value >> _U32)) * _MULTIPLIER_B
    return value >> _U32


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
        table[i, HALF_BITS] = half_bits
        table[i, NUM_LINES] = ((size - _U1) >> half_bits) + _U1
        table[i, OFFSET] = offsets[i]
        state = mix(key ^ mix(tweaks[i] + _GOLDEN))
        for k in range(FIRST_KEY, ROW_WIDTH):
            state += _GOLDEN
            table[i, k] = mix(state)


@numba.njit(inline="always")
def _rotate(line: Any, turn: Any, num_lines: Any) -> Any:
    """(line + turn) mod num_lines for line and turn below num_lines, without a branch."""
    over = line + turn - num_lines
    return over + (np.uint64(np.int64(over) >> _I63) & num_lines)


@numba.njit(inline="always")
def _two_rounds(line: Any, column: Any, keys: Any, num_lines: Any, column_mask: Any) -> Any:
    line = _rotate(line, (_hash_half(column, keys & _LOW_32) * num_lines) >> _U32, num_lines)
    column ^= _hash_half(line, keys >> _U32) & column_mask
    return line, column


@numba.njit(inline="always")
def _undo_two_rounds(line: Any, column: Any, keys: Any, num_lines: Any, column_mask: Any) -> Any:
    column ^= _hash_half(line, keys >> _U32) & column_mask
    turn = (_hash_half(column, keys & _LOW_32) * num_lines) >> _U32
    return _rotate(line, num_lines - turn, num_lines), column


@numba.njit(inline="always")
def _six_rounds(row: Any, x: Any, twist: Any) -> Any:
    num_lines = row[NUM_LINES]
    column_mask = (_U1 << row[HALF_BITS]) - _U1
    line = x >> row[HALF_BITS]
    column = x & column_mask
    line, column = _two_rounds(line, column, row[FIRST_KEY] ^ twist, num_lines, column_mask)
    line, column = _two_rounds(line, column, row[FIRST_KEY + 1] ^ twist, num_lines, column_mask)
    line, column = _two_rounds(line, column, row[FIRST_KEY + 2] ^ twist, num_lines, column_mask)
    return (line << row[HALF_BITS]) | column


@numba.njit(inline="always")
def _undo_six_rounds(row: Any, y: Any, twist: Any) -> Any:
    num_lines = row[NUM_LINES]
    column_mask = (_U1 << row[HALF_BITS]) - _U1
    line = y >> row[HALF_BITS]
    column = y & column_mask
    line, column = _undo_two_rounds(line, column, row[FIRST_KEY + 2] ^ twist, num_lines, column_mask)
    line, column = _undo_two_rounds(line, column, row[FIRST_KEY + 1] ^ twist, num_lines, column_mask)
    line, column = _undo_two_rounds(line, column, row[FIRST_KEY] ^ twist, num_lines, column_mask)
    return (line << row[HALF_BITS]) | column


@numba.njit(inline="always")
def _extra_passes(size: Any) -> Any:
    """How many times six rounds follow the first six."""
    if size >= _SMALL:
        return 0
    return 1 if size >= _TINY else 4


@numba.njit(inline="always")
def _finish(row: Any, x: Any) -> Any:
    """From the first six rounds' result to σ: the further rounds of small sizes, then the walk."""
    extra = _extra_passes(row[SIZE])
    for turn in range(extra):
        x = _six_rounds(row, x, row[FIRST_KEY + 3] * np.uint64(turn + 1))
    while x >= row[SIZE]:
        for turn in range(extra + 1):
            x = _six_rounds(row, x, row[FIRST_KEY + 3] * np.uint64(turn))
    return x


@numba.njit(inline="always")
def forward(row: Any, x: Any) -> Any:
    """σ(x): uint64 in [0, size) → uint64 in [0, size), under a parameter row (uint64 [ROW_WIDTH])."""
    return _finish(row, _six_rounds(row, x, _U0))


@numba.njit(inline="always")
def backward(row: Any, y: Any) -> Any:
    """σ⁻¹(y): undoes `forward`."""
    while True:
        for turn in range(_extra_passes(row[SIZE]), -1, -1):
            y = _undo_six_rounds(row, y, row[FIRST_KEY + 3] * np.uint64(turn))
        if y < row[SIZE]:
            return y


@numba.njit(inline="always")
def _turn_lines(lines: Any, columns: Any, keys: Any, num_lines: Any, num: int) -> None:
    for s in range(num):
        turn = (_hash_half(columns[s], keys[s] & _LOW_32) * num_lines[s]) >> _U32
        lines[s] = _rotate(lines[s], turn, num_lines[s])


@numba.njit(inline="always")
def _flip_columns(lines: Any, columns: Any, keys: Any, half_bits: Any, num: int) -> None:
    for s in range(num):
        columns[s] ^= _hash_half(lines[s], keys[s] >> _U32) & ((_U1 << half_bits[s]) - _U1)


@numba.njit(nogil=True, cache=True)
def six_rounds_each(values: Any, half_bits: Any, num_lines: Any, keys: Any, columns: Any, num: int) -> None:
    """Six rounds of a block of values, each under parameters of its own.

    One loop for each round: its iterations are short and independent, so they compile to vector instructions and many
    are in flight at once, which takes less than half the time of one loop over all six.

    Args:
        values: uint64 [at least num], overwritten.
        half_bits: uint64, as long.
        num_lines: uint64, as long.
        keys: three uint64 arrays, as long: the round keys, twisted where that is due.
        columns: uint64, as long: scratch.
        num: how many values there are.
    """
    keys_1_2, keys_3_4, keys_5_6 = keys
    for s in range(num):
        value = values[s]
        columns[s] = value & ((_U1 << half_bits[s]) - _U1)
        values[s] = value >> half_bits[s]
    _turn_lines(values, columns, keys_1_2, num_lines, num)
    _flip_columns(values, columns, keys_1_2, half_bits, num)
    _turn_lines(values, columns, keys_3_4, num_lines, num)
    _flip_columns(values, columns, keys_3_4, half_bits, num)
    _turn_lines(values, columns, keys_5_6, num_lines, num)
    _flip_columns(values, columns, keys_5_6, half_bits, num)
    for s in range(num):
        values[s] = (values[s] << half_bits[s]) | columns[s]


@numba.njit(nogil=True, cache=True)
def permute_pools(table: Any, pool_of: Any, values: Any) -> None:
    """Replaces each draw by its index into the pool array: values[s] = offset + σ(values[s]).

    Works in blocks that stay in cache. Values that need more rounds, because their permutation is small or because
    they landed beyond its size, are collected without branches and go through the same loops again.

    Args:
        table: uint64 [n, ROW_WIDTH], parameter rows.
        pool_of: int32 [S], each value's row.
        values: uint64 [S], overwritten.
    """
    x, columns, half_bits, num_lines = _block(), _block(), _block(), _block()
    keys = (_block(), _block(), _block())
    done, size, offset = _block(), _block(), _block()
    walking = np.empty(BLOCK, dtype=np.int64)  # those that are not in [0, size) yet
    turning = np.empty(BLOCK, dtype=np.int64)  # those of them with rounds left in this pass
    for first in range(0, len(values), BLOCK):
        num = min(BLOCK, len(values) - first)
        pools, block = pool_of[first : first + num], values[first : first + num]
        for s in range(num):
            row = table[pools[s]]
            size[s] = row[SIZE]
            offset[s] = row[OFFSET]
            half_bits[s] = row[HALF_BITS]
            num_lines[s] = row[NUM_LINES]
            keys[0][s] = row[FIRST_KEY]
            keys[1][s] = row[FIRST_KEY + 1]
            keys[2][s] = row[FIRST_KEY + 2]
            done[s] = block[s]
            walking[s] = s
        six_rounds_each(done, half_bits, num_lines, keys, columns, num)
        num_turning = 0
        for s in range(num):
            turning[num_turning] = s
            num_turning += _extra_passes(size[s]) > 0
        num_walking, turn = num, 1
        while num_walking:
            while num_turning:
                for i in range(num_turning):
                    row = table[pools[turning[i]]]
                    twist = row[FIRST_KEY + 3] * np.uint64(turn)
                    x[i] = done[turning[i]]
                    half_bits[i] = row[HALF_BITS]
                    num_lines[i] = row[NUM_LINES]
                    keys[0][i] = row[FIRST_KEY] ^ twist
                    keys[1][i] = row[FIRST_KEY + 1] ^ twist
                    keys[2][i] = row[FIRST_KEY + 2] ^ twist
                six_rounds_each(x, half_bits, num_lines, keys, columns, num_turning)
                turn += 1
                num_left = 0
                for i in range(num_turning):
                    s = turning[i]
                    done[s] = x[i]
                    turning[num_left] = s
                    num_left += turn <= _extra_passes(size[s])
                num_turning = num_left
            num_left = 0
            for i in range(num_walking):
                s = walking[i]
                walking[num_left] = s
                num_left += done[s] >= size[s]
            turning[:num_left] = walking[:num_left]
            num_walking, num_turning, turn = num_left, num_left, 0
        for s in range(num):
            block[s] = offset[s] + done[s]


@numba.njit(inline="always")
def _block() -> Any:
    return np.empty(BLOCK, dtype=np.uint64)


@numba.njit(nogil=True, cache=True)
def permute_positions(row: Any, positions: Any, out: Any) -> None:
    """out[p] = σ(positions[p]), all under one parameter row; positions and out are int64 [N]."""
    x, columns, half_bits, num_lines = _block(), _block(), _block(), _block()
    keys = (_block(), _block(), _block())
    half_bits[:], num_lines[:] = row[HALF_BITS], row[NUM_LINES]
    keys[0][:], keys[1][:], keys[2][:] = row[FIRST_KEY], row[FIRST_KEY + 1], row[FIRST_KEY + 2]
    for first in range(0, len(positions), BLOCK):
        num = min(BLOCK, len(positions) - first)
        for s in range(num):
            x[s] = np.uint64(positions[first + s])
        six_rounds_each(x, half_bits, num_lines, keys, columns, num)
        for s in range(num):
            out[first + s] = np.int64(_finish(row, x[s]))


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
