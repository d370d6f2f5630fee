"""Keyed bijections σ on [0, size), computed one element at a time.

Owns the permutation and its inverse, as kernels and as `Permutation`. Leaves the keys to `epoch.seeds`, and permuting
many values with different parameters at once to `epoch.draws`.

The permutation is a Feistel network on a rectangle. A value x = (line << half_bits) | column is the cell on a line, in
a column, of 2^half_bits columns and ceil(size / 2^half_bits) lines. Rounds alternate: an even one rotates the line by a
hash of the column, an odd one xors the column with a hash of the line. So each round can be undone. A value that lands
in the rectangle but at or beyond size is permuted again (cycle walking). The rectangle has at most 2^half_bits - 1
cells more than size, so this is rare. Six rounds scatter large sizes. Small ones, whose halves have few bits to mix,
take twelve, and tiny ones thirty. Six rounds are a pass.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (generalised Feistel network, cycle
walking). A round hashes a half, a line or column of at most 32 bits, in arithmetic of 32 bits with the constants of C.
Wellons' lowbias32. Parameters come from splitmix64.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import inlined, kernel_or, kernel_part, plain_form
from packhorse.epoch.seeds import checked_seed
from packhorse.topology import checked_integer

SMALL, TINY = np.uint64(4096), np.uint64(16)
"""Sizes below these take twelve and thirty rounds. Golden vectors freeze these and all other constants here."""

MAX_SIZE = 2**62
"""Largest size whose halves fit 32 bits."""

ROUNDS = 6
"""Rounds of a pass."""
_EXTRA_IF_SMALL, _EXTRA_IF_TINY = 1, 4  # passes after the first

# Columns of a parameter row, uint64 [ROW_WIDTH]: all that a permutation of one size under one key needs.
SIZE, OFFSET = 0, 1  # OFFSET is not used here; the kernels of a plan keep a pool's start in it
FORM = 2  # low 32 bits: 31 - half_bits, which is called the shift; high 32 bits: the number of lines
KEYS = 3  # low 32 bits: the key of round 0; high 32 bits: the step, which each further round adds to the key
ROW_WIDTH = 4

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, which splitmix64 adds to its state before every draw."""

# Multipliers of splitmix64, for `mix`, and of lowbias32, for `_hash_half`.
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF_A, _HALF_B = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_U0, _U1, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (0, 1, 27, 30, 31, 32))
_1, _15, _31 = np.uint32(1), np.uint32(15), np.uint32(31)
_SIGN_SHIFT = np.int32(31)  # spreads the sign bit of an int32 over all its bits


@inlined
def mix(value: Any) -> Any:
    """Returns the hash of a uint64 by splitmix64's finaliser: every bit of the value changes every bit of the hash."""
    value = (value ^ (value >> _U30)) * _MIX_A
    value = (value ^ (value >> _U27)) * _MIX_B
    return value ^ (value >> _U31)


@inlined
def _hash_half(half: Any, key: Any) -> Any:
    """Returns the hash of a half under a key: uint32, whose high bits are mixed best."""
    value = np.uint32((half ^ key) * _HALF_A)
    return np.uint32((value ^ (value >> _15)) * _HALF_B)


@kernel_or()
def fill_parameters(sizes: Any, offsets: Any, tweaks: Any, key: Any, table: Any) -> None:
    """Writes one parameter row for each permutation; all arguments are uint64.

    Args:
        sizes: [n], each in [1, MAX_SIZE].
        offsets: [n], written to the column OFFSET.
        tweaks: [n], distinct for one key; permutations with different tweaks are independent.
        key: a result of `derive_key`.
        table: [n, ROW_WIDTH], receives the rows.
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
        table[i, FORM] = (_U31 - half_bits) | ((((size - _U1) >> half_bits) + _U1) << _U32)
        table[i, KEYS] = mix(mix(key ^ mix(tweaks[i] + GOLDEN)) + GOLDEN) | (_U1 << _U32)  # bit 32 makes the step odd


@inlined
def rotation_of(column: Any, key: Any, num_lines: Any) -> Any:
    """Returns the number of lines by which a round rotates the values of a column: uint32 in [0, num_lines)."""
    return np.uint32((np.uint64(_hash_half(column, key)) * np.uint64(num_lines)) >> _U32)


@inlined
def rotated(line: Any, rotation: Any, num_lines: Any) -> Any:
    """Returns (line + rotation) mod num_lines, for line and rotation of at most num_lines: uint32."""
    # Without a branch: the sign bit of `over`, spread over all bits, is a mask for the lines to add back.
    over = np.int32(line + rotation - num_lines)
    return np.uint32(np.uint32(over) + (np.uint32(over >> _SIGN_SHIFT) & num_lines))


@inlined
def flipped(line: Any, key: Any, shift: Any) -> Any:
    """Returns the bits of a column that a line flips: uint32 of 31 - shift bits."""
    return np.uint32((_hash_half(line, key) >> _1) >> (shift & _31))


@inlined
def round_key(key: Any, step: Any, number: Any) -> Any:
    """Returns the key of a round, from the key of round 0 and the step: uint32."""
    return np.uint32(key + np.uint32(np.uint32(number) * step))


@inlined
def _half_bits(shift: Any) -> Any:
    """Returns the number of bits of a column, 31 - shift. The mask tells the compiler that it is below 32."""
    return np.uint64((_31 - shift) & _31)


@inlined
def line_of(x: Any, shift: Any) -> Any:
    """Returns the line of a value: uint32."""
    return np.uint32(x >> _half_bits(shift))


@inlined
def column_of(x: Any, shift: Any) -> Any:
    """Returns the column of a value: uint32."""
    return np.uint32(x & ((_U1 << _half_bits(shift)) - _U1))


@inlined
def cell_at(line: Any, column: Any, shift: Any) -> Any:
    """Returns the value on a line, in a column: uint64."""
    return (np.uint64(line) << _half_bits(shift)) | np.uint64(column)


@inlined
def _six_rounds(row: Any, x: Any, pass_number: Any) -> Any:
    """Returns a value after the rounds of a pass, under a parameter row."""
    shift, num_lines = np.uint32(row[FORM]), np.uint32(row[FORM] >> _U32)
    key, step = np.uint32(row[KEYS]), np.uint32(row[KEYS] >> _U32)
    line, column = line_of(x, shift), column_of(x, shift)
    for number in range(ROUNDS * pass_number, ROUNDS * (pass_number + 1), 2):
        line = rotated(line, rotation_of(column, round_key(key, step, number), num_lines), num_lines)
        column ^= flipped(line, round_key(key, step, number + 1), shift)
    return cell_at(line, column, shift)


@inlined
def _undo_six_rounds(row: Any, y: Any, pass_number: Any) -> Any:
    """Returns the value from which `_six_rounds` makes y."""
    shift, num_lines = np.uint32(row[FORM]), np.uint32(row[FORM] >> _U32)
    key, step = np.uint32(row[KEYS]), np.uint32(row[KEYS] >> _U32)
    line, column = line_of(y, shift), column_of(y, shift)
    for number in range(ROUNDS * (pass_number + 1) - 2, ROUNDS * pass_number - 1, -2):
        column ^= flipped(line, round_key(key, step, number + 1), shift)
        rotation = rotation_of(column, round_key(key, step, number), num_lines)
        line = rotated(line, np.uint32(num_lines - rotation), num_lines)
    return cell_at(line, column, shift)


@inlined
def extra_passes(size: Any) -> Any:
    """Returns the number of passes after the first, by size."""
    if size >= SMALL:
        return 0
    return _EXTRA_IF_SMALL if size >= TINY else _EXTRA_IF_TINY


@inlined  # as a call it would nearly triple the time of finding bins, for whose values `walked` rarely needs it
def _all_rounds(row: Any, x: Any) -> Any:
    """Returns a value after all its passes, which may be at or beyond size."""
    for pass_number in range(extra_passes(row[SIZE]) + 1):
        x = _six_rounds(row, x, pass_number)
    return x


@inlined
def walked(row: Any, x: Any) -> Any:
    """Returns σ of a value, given the value after all its passes: permutes it again while it is at or beyond size."""
    while x >= row[SIZE]:
        x = _all_rounds(row, x)
    return x


@inlined
def forward(row: Any, x: Any) -> Any:
    """Returns σ(x) under a parameter row; both are uint64 in [0, size)."""
    while True:
        x = _all_rounds(row, x)
        if x < row[SIZE]:
            return x


@kernel_part
def backward(row: Any, y: Any) -> Any:
    """Returns σ⁻¹(y) under a parameter row; it undoes `forward`."""
    while True:
        for pass_number in range(extra_passes(row[SIZE]), -1, -1):
            y = _undo_six_rounds(row, y, pass_number)
        if y < row[SIZE]:
            return y


def permuted(rows: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns σ(values), computed in NumPy: [n]. `rows` is a parameter row, or one for each value: [n, ROW_WIDTH]."""
    return _after_passes(rows, values, plain_form(_six_rounds), range(_EXTRA_IF_TINY + 1))


def unpermuted(rows: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns σ⁻¹(values), computed in NumPy; arguments as for `permuted`."""
    return _after_passes(rows, values, plain_form(_undo_six_rounds), range(_EXTRA_IF_TINY, -1, -1))


def _after_passes(rows: Any, values: Any, one_pass: Any, order: range) -> Any:
    """Takes values through all their passes, again and again until each is below its size.

    Args:
        rows: as for `permuted`.
        values: as for `permuted`.
        one_pass: takes values through a pass, or back.
        order: numbers of the passes in the order in which they are taken; a value skips those that its size does not
            need.
    """
    rows = np.broadcast_to(rows, (len(values), ROW_WIDTH))
    sizes = rows[:, SIZE]
    last_pass = np.where(sizes >= SMALL, 0, np.where(sizes >= TINY, _EXTRA_IF_SMALL, _EXTRA_IF_TINY))
    out, left = values.copy(), np.arange(len(values))  # `left`: indices of values that are not finished
    while len(left):
        for pass_number in order:
            taken = left[last_pass[left] >= pass_number]
            out[taken] = one_pass(rows[taken].T, out[taken], pass_number)
        left = left[out[left] >= sizes[left]]
    return out


def _permute_many(row: Any, values: Any, out: Any) -> None:
    out[:] = permuted(row, values)


def _unpermute_many(row: Any, values: Any, out: Any) -> None:
    out[:] = unpermuted(row, values)


@kernel_or(_permute_many)
def _forward_many(row: Any, values: Any, out: Any) -> None:
    """Writes σ(values) to `out`: uint64 [n] both."""
    for i in range(len(values)):
        out[i] = forward(row, values[i])


@kernel_or(_unpermute_many)
def _backward_many(row: Any, values: Any, out: Any) -> None:
    """Writes σ⁻¹(values) to `out`: uint64 [n] both."""
    for i in range(len(values)):
        out[i] = backward(row, values[i])


class Permutation:
    """A keyed bijection on [0, size), in constant time and memory for each element.

    Args:
        size: number of elements, in [1, 2^62].
        key: in [0, 2^64), e.g. from `derive_key`.
        tweak: number of the permutation under this key; those with different tweaks are independent.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, size: int, key: int, tweak: int = 0) -> None:
        self.size = checked_integer("size", size, 1, MAX_SIZE)
        sizes, offsets, tweaks = (np.array([n], np.uint64) for n in (size, 0, checked_seed("tweak", tweak)))
        table: NDArray[np.uint64] = np.empty((1, ROW_WIDTH), dtype=np.uint64)
        fill_parameters(sizes, offsets, tweaks, np.uint64(checked_seed("key", key)), table)
        self.row = table[0]

    def forward(self, values: ArrayLike) -> NDArray[np.int64]:
        """Returns σ(values): int64, the shape of `values`, each in [0, size); a ValueError if one is outside."""
        return self._apply(_forward_many, values)

    def backward(self, values: ArrayLike) -> NDArray[np.int64]:
        """Returns σ⁻¹(values): int64, the shape of `values`, each in [0, size); a ValueError if one is outside."""
        return self._apply(_backward_many, values)

    def __call__(self, value: int) -> int:
        """Returns σ(value)."""
        return int(self.forward([value])[0])

    def inverse(self, value: int) -> int:
        """Returns σ⁻¹(value)."""
        return int(self.backward([value])[0])

    def _apply(self, kernel: Any, values: ArrayLike) -> NDArray[np.int64]:
        """Checks values, and runs a kernel over them: int64, the shape of `values`."""
        array = np.asarray(values, dtype=np.int64)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < self.size:
            raise ValueError(f"values must be in [0, {self.size}), got {int(array.min())} … {int(array.max())}")
        flat = np.ascontiguousarray(array).view(np.uint64).ravel()
        out = np.empty_like(flat)
        kernel(self.row, flat, out)
        return out.view(np.int64).reshape(array.shape)
