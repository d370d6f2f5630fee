"""How far the runs of each mixture have come, over all processes of a server.

Owns the table that the processes share. What a server refuses because of it is in `backend`.
"""

import threading
import zlib
from pathlib import Path

import numpy as np

_COLUMNS = 4096
"""Columns of the table. A mixture's column is a hash of its name. Mixtures that share a column share the furthest
position: at worst, a change that was possible is refused."""


class RunProgress:
    """Each mixture's furthest position that was sent, counted from the run's beginning. Safe with many threads.

    The table has a row for each process and a column for each mixture. A process writes only its own row and reads all
    of them, so processes need no lock.

    Example:
        >>> reached = RunProgress()
        >>> reached.note("web-and-code", 700)
        >>> reached.note("web-and-code", 300)
        >>> reached.of("web-and-code"), reached.of("another")
        (700, 0)

    Args:
        path: the file that several processes share, as `make_shared_table` made it; None for one process.
        slot: the index of this process's row. If the process dies, its replacement continues with the row.
    """

    def __init__(self, path: Path | None = None, slot: int = 0) -> None:
        flat = np.zeros(_COLUMNS, np.int64) if path is None else np.memmap(path, np.int64, mode="r+")
        self._table = flat.reshape(-1, _COLUMNS)  # [processes, _COLUMNS]
        self._slot = slot
        self._lock = threading.Lock()

    def note(self, name: str, position: int) -> None:
        """Notes that bins before a position of the run have been sent."""
        column = _column(name)
        with self._lock:
            if position > self._table[self._slot, column]:
                self._table[self._slot, column] = position

    def of(self, name: str) -> int:
        """Returns the end, exclusive, of the positions that were sent; 0 if there are none."""
        return int(self._table[:, _column(name)].max())


def make_shared_table(path: Path, num_processes: int) -> None:
    """Writes the file that processes share, filled with zeros."""
    path.write_bytes(np.zeros((num_processes, _COLUMNS), np.int64).tobytes())


def _column(name: str) -> int:
    return zlib.crc32(name.encode()) % _COLUMNS
