"""How many streams may be open at once: in one process, or in all processes of a server together.

Owns the counting; leaves the refusal to `servicer`.
"""

import mmap
from pathlib import Path

_BYTES = 8


class StreamLimit:
    """Counts the streams of one process.

    Example:
        >>> limit = StreamLimit(1)
        >>> limit.take(), limit.take()
        (True, False)

    Args:
        most: streams at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._num_taken = 0

    @property
    def num_open(self) -> int:
        """Streams of this process."""
        return self._num_taken

    def take(self) -> bool:
        """Counts one more, or returns False where there are as many as may be."""
        if self._num_taken >= self.most:
            return False
        self._num_taken += 1
        return True

    def give_back(self) -> None:
        """Counts one less."""
        self._num_taken -= 1


class SharedStreamLimit(StreamLimit):
    """Counts the streams of several processes.

    Each writes its own number into a file that all of them map, and reads the others'. No lock is needed: a process
    counts its stream first and looks at the sum then, so of two that ask for the last permit at one moment both may
    be refused, but never both be let in.

    Args:
        most: streams at once, of all processes.
        path: the file, as `make_shared_limit` made it.
        slot: which number is this process's, from 0.
    """

    def __init__(self, most: int, path: Path, slot: int) -> None:
        super().__init__(most)
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._slot = slot

    @property
    def num_open(self) -> int:
        """Streams of this process."""
        return self._numbers[self._slot]

    def take(self) -> bool:
        """Counts one more, or returns False where there are as many as may be."""
        self._numbers[self._slot] += 1
        if sum(self._numbers) <= self.most:
            return True
        self._numbers[self._slot] -= 1
        return False

    def give_back(self) -> None:
        """Counts one less."""
        self._numbers[self._slot] -= 1

    def clear(self) -> None:
        """Forgets the streams of the slot: its process has ended, whatever it was doing."""
        self._numbers[self._slot] = 0


def make_shared_limit(path: Path, num_processes: int) -> None:
    """Writes the file through which so many processes count their streams."""
    path.write_bytes(bytes(_BYTES * num_processes))
