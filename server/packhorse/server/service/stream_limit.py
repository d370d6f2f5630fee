"""A limit of open streams, of one process or over several.

Owns counting them. Leaves the refusals to `servicer`, and bytes to `memory_budget`.
"""

import mmap
from pathlib import Path

_NUMBER_BYTES = 8  # an int64


class StreamLimit:
    """Counts open streams.

    Each process writes its own number into a file that all processes map, and reads the others'. No lock is needed: a
    process first counts its stream, then looks at the sum. If two processes ask for the last place at one moment, both
    may be refused, but never both admitted. Within a process only its event loop changes the number.

    Example:
        >>> limit = StreamLimit(1)
        >>> limit.take(), limit.take()
        (True, False)

    Args:
        most_streams: streams open at once, of all processes.
        path: the file, as `make_shared_limit` made it; None for one process.
        slot: the index of this process's number.
    """

    def __init__(self, most_streams: int, path: Path | None = None, slot: int = 0) -> None:
        self.most_streams = most_streams
        self._slot = slot
        data: bytearray | mmap.mmap = bytearray(_NUMBER_BYTES)
        if path is not None:
            with path.open("r+b") as file:
                data = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(data).cast("q")

    @property
    def num_open(self) -> int:
        """Number of open streams of this process."""
        return self._numbers[self._slot]

    def take(self) -> bool:
        """Counts one more stream and returns True; returns False if the limit is reached."""
        self._numbers[self._slot] += 1
        if sum(self._numbers) <= self.most_streams:
            return True
        self._numbers[self._slot] -= 1
        return False

    def give_back(self) -> None:
        """Counts one stream less."""
        self._numbers[self._slot] -= 1

    def clear(self) -> None:
        """Sets the number of this slot to 0, after its process has ended."""
        self._numbers[self._slot] = 0


def make_shared_limit(path: Path, num_processes: int) -> None:
    """Writes the file in which processes count their streams, filled with zeros."""
    path.write_bytes(bytes(_NUMBER_BYTES * num_processes))
