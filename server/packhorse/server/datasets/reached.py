"""How far the runs of each mixture have come, so that nobody changes what has been handed out.

Owns the table that the processes of a server share; leaves what may be done with it to `backend`.
"""

import threading
import zlib
from pathlib import Path

import numpy as np

_ROWS = 4096
"""Names that share a row share the furthest position, and are at worst refused a change that they could have had."""


class Reached:
    """The furthest position of the run that was handed out of each mixture. Safe to be used by many threads.

    Each process writes a column of its own, and reads all of them; no lock between processes is needed.

    Example:
        >>> reached = Reached()
        >>> reached.note("web-and-code", 700)
        >>> reached.note("web-and-code", 300)
        >>> reached.of("web-and-code"), reached.of("another")
        (700, 0)

    Args:
        path: the file that several processes share, as `make_shared_table` made it; None where there is one process.
        slot: which column is this process's, from 0. Its successor, where it dies, goes on with it.
    """

    def __init__(self, path: Path | None = None, slot: int = 0) -> None:
        columns = np.zeros(_ROWS, np.int64) if path is None else np.memmap(path, np.int64, mode="r+")
        self._table = columns.reshape(-1, _ROWS)
        self._slot = slot
        self._lock = threading.Lock()

    def note(self, name: str, position: int) -> None:
        """Keeps that bins before a position of the run have been handed out, to anybody."""
        row = _row(name)
        with self._lock:
            if position > self._table[self._slot, row]:
                self._table[self._slot, row] = position

    def of(self, name: str) -> int:
        """Returns one behind the furthest position handed out; 0 where there is none."""
        return int(self._table[:, _row(name)].max())


def make_shared_table(path: Path, num_processes: int) -> None:
    """Writes the file that so many processes share."""
    path.write_bytes(bytes(8 * _ROWS * num_processes))


def _row(name: str) -> int:
    return zlib.crc32(name.encode()) % _ROWS
