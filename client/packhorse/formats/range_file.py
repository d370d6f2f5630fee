"""`RangeFile`: a file whose bytes come from a function that reads ranges, such as one that asks a store."""

import io
import os
from collections.abc import Callable
from typing import Any


class RangeFile(io.RawIOBase):
    """A read-only file of `size_bytes` whose bytes [begin, end) come from a function, `read_range(begin, end)`."""

    def __init__(self, read_range: Callable[[int, int], bytes | memoryview], size_bytes: int) -> None:
        self._read_range = read_range
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """Returns True, as of a file that is open for reading."""
        return True

    def seekable(self) -> bool:
        """Returns True: a range can begin anywhere."""
        return True

    def tell(self) -> int:
        """Returns the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to an offset, as files do."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with the next bytes, fewer at the end of the file; returns how many."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size_bytes)
        size = max(0, end - self._at)
        if size:
            view[:size] = self._read_range(self._at, end)
            self._at = end
        return size
