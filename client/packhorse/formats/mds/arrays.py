"""Arrays and lists in the cells of MDS shards: the names of their encodings, and decoding them.

Owns what the bytes of one cell mean. Where a cell is, is in `shards`.
"""

import json
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ARRAY_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""Code that begins an array without a type in its encoding -> the type of its values."""


class ArrayType(NamedTuple):
    """What the name of an array's encoding says."""

    dtype: np.dtype[Any] | None
    """Type of the values; None if each array names its own."""
    shape: tuple[int, ...] | None
    """Shape of each array; None if each array names its own."""


@cache
def array_type(encoding: str) -> ArrayType | None:
    """Reads the name of an array's encoding: `ndarray`, `ndarray:uint16` or `ndarray:uint16:2048`.

    Returns None for another encoding.

    Raises:
        ValueError: the type or the shape is not valid.
    """
    name, *details = encoding.split(":")
    if name != "ndarray":
        return None
    try:
        if len(details) > 2 or (details and details[0] not in _ARRAY_CODES.values()):
            raise ValueError
        shape = tuple(int(extent) for extent in details[1].split(",")) if len(details) == 2 else None
    except ValueError:
        raise ValueError(f"{encoding!r} is not a known MDS encoding") from None
    return ArrayType(np.dtype(details[0]).newbyteorder("<") if details else None, shape)


def read_array(cell: memoryview, encoding: str) -> NDArray[Any]:
    """Decodes a cell of an `ndarray` column, as a view; a ValueError if the bytes are not such an array.

    The cell begins with the type's code (1 byte) if the encoding has no type. Then, if the encoding has no shape, come
    the head (1 byte: 4 · number of axes + log2(bytes of an extent)) and the extents. The values are last.
    """
    found = array_type(encoding)
    assert found is not None
    dtype, shape = found
    at = 0
    try:
        if dtype is None:
            dtype = np.dtype(_ARRAY_CODES[cell[0]]).newbyteorder("<")
            at = 1
        if shape is None:
            num_axes, log_bytes = divmod(cell[at], 4)
            extents = np.frombuffer(cell, f"<u{1 << log_bytes}", num_axes, at + 1)
            shape = tuple(extents.tolist())
            at += 1 + extents.nbytes
        return np.frombuffer(cell[at:], dtype).reshape(shape)
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"{len(cell)} bytes are not an array of encoding {encoding!r}: the shard is corrupt") from None


def list_lengths(
    heads: NDArray[np.uint8], sizes: NDArray[np.int64], dtype: np.dtype[Any], where: str, column: str
) -> NDArray[np.int64]:
    """Returns the lengths of lists from the heads and sizes of their cells, without decoding them: int64 [n].

    Args:
        heads: uint8 [n]; see `read_array`. The encoding has a type and no shape.
        sizes: bytes of each cell: int64 [n].
        dtype: the type in the encoding.
        where: the shard, for messages.
        column: name of the column, for messages.

    Raises:
        ValueError: a cell is not a list, or too small.
    """
    num_axes = heads >> 2
    if (num_axes != 1).any():
        row = int((num_axes != 1).argmax())
        raise ValueError(f"{where}: sequence {row}, column {column!r} holds no list: {num_axes[row]} axes")
    extent_bytes = 1 << (heads & 3).astype(np.int64)
    # A cell is its head of 1 byte, one extent, and the values.
    lengths = (sizes - 1 - extent_bytes) // dtype.itemsize
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(f"{where}: sequence {int(lengths.argmin())}, column {column!r} has no bytes: it is corrupt")
    return lengths


def num_integers(cell: memoryview, encoding: str, where: str, row: int) -> int:
    """Returns how many integers a cell holds, by decoding it; a ValueError if it is not a list of integers.

    `where` is the shard, and `row` the cell's number in it, for messages.
    """
    try:
        values = np.asarray(json.loads(bytes(cell))) if encoding == "json" else read_array(cell, encoding)
    except ValueError as error:
        raise ValueError(f"{where}: sequence {row}: {error}") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):  # NumPy makes an empty list float64
        raise ValueError(
            f"{where}: sequence {row} holds {values.dtype} of shape {list(values.shape)}, not a list of integers"
        )
    return len(values)
