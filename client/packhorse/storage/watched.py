"""Files that are read again when they change.

Owns noticing the change and what stays in use where the new content is wrong. Leaves the content to its reader.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

_LOG = logging.getLogger(__name__)
_Value = TypeVar("_Value")

Stamp: TypeAlias = tuple[int, int, int]
"""(inode, size in bytes, time of change in nanoseconds) of a file."""


def stamp_of(path: Path | str) -> Stamp | None:
    """Returns the stamp of a file; None where there is none, or it may not be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Watched(Generic[_Value]):
    """What some files say now. Safe to be used by many threads.

    Files that changed into something unusable (half copied, say) leave the value before them in use. The log says so
    once, and `trouble` as long as it lasts.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "number")
        ...     _ = path.write_text("1")
        ...     number = Watched("the number", [path], lambda: int(path.read_text()))
        ...     before = number.get()
        ...     _ = path.write_text("many")
        ...     before, number.get(), number.trouble.partition(":")[0]
        (1, 1, 'invalid literal for int() with base 10')

    Args:
        name: of the content in the log, such as "the certificates".
        paths: of the files; they need not exist.
        read: reads them. A ValueError or an OSError says that they cannot be used.

    Raises:
        ValueError, OSError: whatever `read` raises the first time.
    """

    def __init__(self, name: str, paths: Sequence[Path], read: Callable[[], _Value]) -> None:
        self._name = name
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._trouble = ""
        self._stamps = self._now()  # before the files are read, so that no change in between is missed
        self._value = read()

    def get(self) -> _Value:
        """Returns what the files say, or said when they were last usable."""
        with self._lock:
            stamps = self._now()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._value = self._read()
                except (ValueError, OSError) as error:
                    self._trouble = f"{error}; what was read before stays in use"
                    _LOG.error("%s changed and cannot be used: %s", self._name, self._trouble)
                else:
                    self._trouble = ""
                    _LOG.info("%s changed: read again", self._name)
            return self._value

    @property
    def trouble(self) -> str:
        """What is wrong with the files now; empty where nothing is."""
        self.get()
        return self._trouble

    def _now(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in self._paths]
