"""Encodings of MDS columns that hold integers or arrays: what their names say, and how a cell's bytes are decoded.

An `ndarray` cell, little-endian: u8 code of the type and u8 (axes · 4 + log2 of the size of an extent), extents, each
left out where the encoding's name gives it (`ndarray:uint16:2048`); then the values.
"""

import json
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

INTEGERS: dict[str, np.dtype[Any]] = {
    "int": np.dtype("<i8"),
    **{name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""Encodings of one integer -> its type."""

_ARRAY_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""Code before the values of an array -> their type."""


@cache
def array_type(encoding: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None] | None:
    """Reads the name of an array's encoding: `ndarray`, `ndarray:uint16` or `ndarray:uint16:2048`.

    Returns:
        The type of its values and its shape, each None where every array says; None for other encodings.

    Raises:
        ValueError: the type or the shape is none.
    """
    name, *details = encoding.split(":")
    if name != "ndarray":
        return None
    try:
        if len(details) > 2 or (details and details[0] not in _ARRAY_CODES.values()):
            raise ValueError
        shape = tuple(int(extent) for extent in details[1].split(",")) if len(details) == 2 else None
    except ValueError:
        raise ValueError(f"{encoding!r} is no MDS encoding that is known") from None
    return np.dtype(details[0]).newbyteorder("<") if details else None, shape


def read_array(cell: memoryview, encoding: str) -> NDArray[Any]:
    """Decodes one array, as a view.

    Args:
        cell: the bytes of an `ndarray` column of one sequence.
        encoding: of the column.

    Raises:
        ValueError: the bytes are not such an array.
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
            axes, log_size = divmod(cell[at], 4)
            extents = np.frombuffer(cell, f"<u{1 << log_size}", axes, at + 1)
            shape = tuple(extents.tolist())
            at += 1 + axes * (1 << log_size)
        return np.frombuffer(cell[at:], dtype).reshape(shape)
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"{len(cell)} bytes are no array of encoding {encoding!r}: the shard is corrupt") from None


def num_integers(cell: memoryview, encoding: str, where: str, row: int) -> int:
    """Returns the number of integers in a cell that must be decoded to know it; a ValueError where it is no list."""
    try:
        values = np.asarray(json.loads(bytes(cell))) if encoding == "json" else read_array(cell, encoding)
    except ValueError as error:
        raise ValueError(f"{where}: sequence {row}: {error}") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"{where}: sequence {row} holds {values.dtype} of shape {list(values.shape)}, no list of integers"
        )
    return len(values)
