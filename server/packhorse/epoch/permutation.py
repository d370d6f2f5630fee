"""Keyed bijections on [0, size), computed one element at a time, and the keys that decide them.

Owns the permutation and its inverse, as kernels and as `Permutation`, and `derive_key`, by which every key is a hash of
(seed, epoch, purpose). Leaves many values at once to `epoch.draws`.

The network is Feistel's on a rectangle: x = (line << half_bits) | column with 2^half_bits columns and
ceil(size / 2^half_bits) lines. Rounds alternate: one rotates the lines by a hash of the column, the next xors the
columns with a hash of the line, so each round can be undone. A value that lands in the rectangle beyond size is
permuted again. The rectangle has at most 2^half_bits - 1 cells more than size, hence this is rare. Six rounds scatter
large sizes; small ones, whose halves have few bits to mix, take twelve, and tiny ones thirty.

Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (generalised Feistel network, cycle
walking). A round hashes a half of 32 bits at most, in arithmetic of 32 bits, with the constants of C. Wellons'
lowbias32; parameters come from splitmix64.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import inlined, kernel_or, kernel_part, plain_form
from packhorse.packing import seed_from_components
from packhorse.topology import checked_integer

MAX_SEED = 2**64 - 1

SMALL, TINY = np.uint64(4096), np.uint64(16)
"""Sizes below these take twelve and thirty rounds. Like every constant here frozen by golden vectors."""

MAX_SIZE = 2**62
"""Largest size whose halves fit 32 bits."""

# Columns of a parameter row of uint64: what a permutation of one size under one key needs.
SIZE, OFFSET = 0, 1  # OFFSET is the user's (a pool's start)
FORM = 2  # 31 - half_bits, and above 32 bits the number of lines
KEYS = 3  # the first round's key, and above 32 bits what each further round adds to it
ROW_WIDTH = 4

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, which splitmix64 adds to its state before every draw."""

_MULTIPLIER_A = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_B = np.uint64(0x94D049BB133111EB)
_HALF_A, _HALF_B = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_U0, _U1, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (0, 1, 27, 30, 31, 32))
_1, _15, _31 = np.uint32(1), np.uint32(15), np.uint32(31)
_SIGN = np.int32(31)


def derive_key(seed: int, epoch: int, purpose: str) -> int:
    """Returns the 64-bit key for one purpose in one epoch.

    Example:
        >>> derive_key(1, 0, "bins") == derive_key(0, 1, "bins")
        False

    Args:
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        purpose: what the key is for, e.g. "bins"; different purposes are independent.
    """
    material = b"packhorse.epoch.v1\0" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little") + purpose.encode()
    return int.from_bytes(hashlib.blake2b(material, digest_size=8).digest(), "little")


def independent_seed(seed: int, rank: int, worker: int) -> int:
    """Returns the seed under which one worker goes through the epoch by itself (StreamMode INDEPENDENT).

    Example:
        >>> independent_seed(7, 0, 1) == independent_seed(7, 1, 0)
        False

    Args:
        seed: of the run.
        rank: data-parallel rank.
        worker: dataloader worker within the rank.
    """
    return seed_from_components(seed, rank, worker)


def checked_seed(name: str, value: object) -> int:
    """Returns a seed or epoch as an int in [0, 2^64); a ValueError names it otherwise."""
    return checked_integer(name, value, 0, MAX_SEED)


@inlined
def mix(value: Any) -> Any:
    """splitmix64's finaliser: uint64 → uint64, every input bit reaches every output bit."""
    value = (value ^ (value >> _U30)) * _MULTIPLIER_A
    value = (value ^ (value >> _U27)) * _MULTIPLIER_B
    return value ^ (value >> _U31)


@inlined
def _hash_half(half: Any, key: Any) -> Any:
    """Hash of a half under a key: uint32, whose high bits are mixed best."""
    value = np.uint32((half ^ key) * _HALF_A)
    return np.uint32((value ^ (value >> _15)) * _HALF_B)


@kernel_or()
def fill_parameters(sizes: Any, offsets: Any, tweaks: Any, key: Any, table: Any) -> None:
    """Writes one parameter row for each permutation; all arguments are uint64.

    Args:
        sizes: [n], each in [1, MAX_SIZE].
        offsets: [n], kept beside them for the user.
        tweaks: [n], distinct within a key: permutations of other tweaks are independent.
        key: from `derive_key`.
        table: [n, ROW_WIDTH], written.
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
        table[i, KEYS] = mix(mix(key ^ mix(tweaks[i] + GOLDEN)) + GOLDEN) | (_U1 << _U32)  # an odd step


@inlined
def rotation_of(column: Any, key: Any, num_lines: Any) -> Any:
    """By how many lines a round rotates a column: uint32 in [0, num_lines)."""
    return np.uint32((np.uint64(_hash_half(column, key)) * np.uint64(num_lines)) >> _U32)


@inlined
def rotated(line: Any, rotation: Any, num_lines: Any) -> Any:
    """(line + rotation) mod num_lines for both of at most num_lines, without a branch: uint32."""
    over = np.int32(line + rotation - num_lines)
    return np.uint32(np.uint32(over) + (np.uint32(over >> _SIGN) & num_lines))


@inlined
def flipped(line: Any, key: Any, shift: Any) -> Any:
    """The bits of a column that a line flips: uint32 of 31 - shift bits."""
    return np.uint32((_hash_half(line, key) >> _1) >> (shift & _31))


@inlined
def round_key(key: Any, step: Any, number: Any) -> Any:
    """The key of a round, from the first one's: uint32."""
    return np.uint32(key + np.uint32(np.uint32(number) * step))


@inlined
def _half_bits(shift: Any) -> Any:
    """The bits of a column, 31 - shift. The mask tells the compiler that they are below 32."""
    return np.uint64((_31 - shift) & _31)


@inlined
def line_of(x: Any, shift: Any) -> Any:
    """The line of a value: uint32."""
    return np.uint32(x >> _half_bits(shift))


@inlined
def column_of(x: Any, shift: Any) -> Any:
    """The column of a value: uint32."""
    return np.uint32(x & ((_U1 << _half_bits(shift)) - _U1))


@inlined
def cell_at(line: Any, column: Any, shift: Any) -> Any:
    """The value on a line, in a column: uint64."""
    return (np.uint64(line) << _half_bits(shift)) | np.uint64(column)


@inlined
def _six_rounds(row: Any, x: Any, which: Any) -> Any:
    shift, num_lines = np.uint32(row[FORM]), np.uint32(row[FORM] >> _U32)
    key, step = np.uint32(row[KEYS]), np.uint32(row[KEYS] >> _U32)
    line, column = line_of(x, shift), column_of(x, shift)
    for number in range(6 * which, 6 * which + 6, 2):
        line = rotated(line, rotation_of(column, round_key(key, step, number), num_lines), num_lines)
        column ^= flipped(line, round_key(key, step, number + 1), shift)
    return cell_at(line, column, shift)


@inlined
def _undo_six_rounds(row: Any, y: Any, which: Any) -> Any:
    shift, num_lines = np.uint32(row[FORM]), np.uint32(row[FORM] >> _U32)
    key, step = np.uint32(row[KEYS]), np.uint32(row[KEYS] >> _U32)
    line, column = line_of(y, shift), column_of(y, shift)
    for number in range(6 * which + 4, 6 * which - 1, -2):
        column ^= flipped(line, round_key(key, step, number + 1), shift)
        rotation = rotation_of(column, round_key(key, step, number), num_lines)
        line = rotated(line, np.uint32(num_lines - rotation), num_lines)
    return cell_at(line, column, shift)


@inlined
def extra_passes(size: Any) -> Any:
    """How many passes of six rounds follow the first."""
    if size >= SMALL:
        return 0
    return 1 if size >= TINY else 4


@inlined  # a call would nearly triple the time of finding bins, whose values rarely need it
def _all_rounds(row: Any, x: Any) -> Any:
    for which in range(extra_passes(row[SIZE]) + 1):
        x = _six_rounds(row, x, which)
    return x


@inlined
def walked(row: Any, x: Any) -> Any:
    """σ, from a value after all rounds."""
    while x >= row[SIZE]:
        x = _all_rounds(row, x)
    return x


@inlined
def forward(row: Any, x: Any) -> Any:
    """σ(x): uint64 in [0, size) → uint64 in [0, size), under a parameter row (uint64 [ROW_WIDTH])."""
    while True:
        x = _all_rounds(row, x)
        if x < row[SIZE]:
            return x


@kernel_part
def backward(row: Any, y: Any) -> Any:
    """σ⁻¹(y): undoes `forward`."""
    while True:
        for which in range(extra_passes(row[SIZE]), -1, -1):
            y = _undo_six_rounds(row, y, which)
        if y < row[SIZE]:
            return y


def permuted(rows: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns σ(values) in NumPy: [n]. `rows` is a parameter row, or one for each value, [n, ROW_WIDTH]."""
    return _walked(rows, values, plain_form(_six_rounds), range(5))


def unpermuted(rows: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns σ⁻¹(values) in NumPy, as `permuted`."""
    return _walked(rows, values, plain_form(_undo_six_rounds), range(4, -1, -1))


def _walked(rows: Any, values: Any, six: Any, order: range) -> Any:
    """Takes values through all passes, and through them again where they land beyond their size."""
    rows = np.broadcast_to(rows, (len(values), ROW_WIDTH))
    passes = np.where(rows[:, SIZE] >= SMALL, 0, np.where(rows[:, SIZE] >= TINY, 1, 4))  # as `extra_passes`
    out, left = values.copy(), np.arange(len(values))
    while len(left):
        for number in order:
            ours = left[passes[left] >= number]
            out[ours] = six(rows[ours].T, out[ours], number)
        left = left[out[left] >= rows[left, SIZE]]
    return out


def _permute_many(row: Any, values: Any, out: Any) -> None:
    out[:] = permuted(row, values)


def _unpermute_many(row: Any, values: Any, out: Any) -> None:
    out[:] = unpermuted(row, values)


@kernel_or(_permute_many)
def _forward_many(row: Any, values: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = forward(row, values[i])


@kernel_or(_unpermute_many)
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
        self.size = checked_integer("size", size, 1, MAX_SIZE)
        arguments = (np.array([each], np.uint64) for each in (size, 0, checked_seed("tweak", tweak)))
        table: NDArray[np.uint64] = np.empty((1, ROW_WIDTH), dtype=np.uint64)
        fill_parameters(*arguments, np.uint64(checked_seed("key", key)), table)
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
        array = np.asarray(values, dtype=np.int64)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < self.size:
            raise ValueError(f"values must be in [0, {self.size}), got {int(array.min())} … {int(array.max())}")
        flat = np.ascontiguousarray(array).view(np.uint64).ravel()
        out = np.empty_like(flat)
        kernel(self.row, flat, out)
        return out.view(np.int64).reshape(array.shape)
