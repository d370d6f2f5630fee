"""Structs in Thrift's compact protocol, as a file of Parquet has them before each page.

Owns reading the values by number of their field. What the fields mean is in `levels`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BOOLEANS = {1: True, 2: False}  # a type for each value, which has no bytes of its own
_BYTE = 3
_INTEGERS = (4, 5, 6)
_FLOAT, _STRING, _STRUCT = 7, 8, 12
"""Types of values, as the compact protocol numbers them."""


class UnreadableStructError(Exception):
    """A struct is cut off, or holds what no header of a page does."""


class CompactStruct:
    """Reads a struct in Thrift's compact protocol as {field number: value}.

    Values are integers, booleans and structs; a float or a string is passed over, and its value is None.

    Args:
        data: bytes of the file.
        at: where the struct begins in them.
        end: where it ends at the latest.
    """

    _MOST_DEPTH = 8
    _MOST_BYTES = 1 << 16
    """Enough for a page's header with statistics."""

    def __init__(self, data: NDArray[np.uint8], at: int, end: int) -> None:
        self._data = data[at : min(end, at + self._MOST_BYTES)].tobytes()
        self._begin, self._at = at, 0

    def read(self) -> tuple[dict[int, Any], int]:
        """Returns the struct, and where in the data it ends; raises an UnreadableStructError."""
        try:
            return self._struct(0), self._begin + self._at
        except IndexError:  # it is cut off
            raise UnreadableStructError from None

    def _struct(self, depth: int) -> dict[int, Any]:
        """Reads fields up to the byte of 0 that ends a struct.

        A field's first byte has its type, and the step from the number before to its number; 0 if that follows.
        """
        if depth > self._MOST_DEPTH:
            raise UnreadableStructError
        found: dict[int, Any] = {}
        number = 0
        while True:
            lead = self._byte()
            if lead == 0:
                return found
            kind = lead & 15
            step = lead >> 4
            number = number + step if step else self._zigzag()
            found[number] = self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        """Reads a value of a type, as Thrift's compact protocol numbers types."""
        if kind in _BOOLEANS:
            return _BOOLEANS[kind]
        if kind == _BYTE:
            return self._byte()
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == _STRUCT:
            return self._struct(depth + 1)
        if kind == _FLOAT:
            self._at += 8
        elif kind == _STRING:
            size = self._varint()
            self._at += size
        else:
            raise UnreadableStructError  # lists, sets and maps: no page header has one
        return None

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        """Reads a number with seven bits in each byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _zigzag(self) -> int:
        """Reads a signed number, whose sign is the lowest bit."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
