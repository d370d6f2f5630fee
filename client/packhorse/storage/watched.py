"""`Watched`: the content of files, read again when they change; unusable new content does not replace the old.

Owns noticing that a file changed. Leaves reading files to the caller, and not waiting for a file system that hangs to
`in_time`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from packhorse.storage.in_time import look_at

_LOG = logging.getLogger(__name__)
_Value = TypeVar("_Value")

PATIENCE_SECONDS = 1.0
"""How long a caller waits for the file system of a watched file; a server's calls wait with it."""


class Stamp(NamedTuple):
    """What changes with the content of a file."""

    inode: int
    """Number of the file in its file system; another file under the same name has another one."""
    size_bytes: int
    """Size of the file."""
    modified_ns: int
    """Time of its last change, in nanoseconds since 1970."""


def stamp_of(path: Path | str) -> Stamp | None:
    """Returns the stamp of a file; None if it is missing or may not be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns)


class Watched(Generic[_Value]):
    """The content of some files, read again when they change. Threads may share it.

    If the new content is unusable (half copied, say) or the file system hangs, the last usable content stays in use.
    The log says so once, and `trouble` says so as long as it lasts.

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
        name: what the log calls the content, such as "the certificates".
        paths: paths of the files; they need not exist.
        read: reads the files and returns their content. A ValueError or an OSError says that they cannot be used.
        fresh_seconds: how old the last look at the files may be; if it is older, they are looked at again.

    Raises:
        ValueError, OSError: whatever `read` raises the first time.
    """

    def __init__(
        self, name: str, paths: Sequence[Path], read: Callable[[], _Value], *, fresh_seconds: float = 0.0
    ) -> None:
        self._name = name
        self._paths = paths
        self._read = read
        self._fresh_seconds = fresh_seconds
        self._key = ", ".join(map(str, paths))
        self._lock = threading.Lock()
        self._trouble = ""
        self._unusable = ""  # the trouble with the content, also while the file system does not answer
        self._hangs = False  # whether the file system did not answer at the last look
        # Stamps come before the content, so that a change in between is noticed later.
        self._stamps = look_at(self._key, self._stamps_now)
        self._value = read()
        self._looked_at = time.monotonic()

    def get(self) -> _Value:
        """Returns the content, or the last usable one; waits at most PATIENCE_SECONDS for the file system."""
        with self._lock:
            if time.monotonic() - self._looked_at >= self._fresh_seconds:
                self._look_in_time()
            return self._value

    @property
    def trouble(self) -> str:
        """What is wrong with the files now; empty if nothing is."""
        with self._lock:
            self._look_in_time()
            return self._trouble

    def _look_in_time(self) -> None:
        """Looks at the files, and notes as trouble that the file system does not answer."""
        self._looked_at = time.monotonic()
        try:
            look_at(self._key, self._look, PATIENCE_SECONDS)
        except TimeoutError as error:
            self._hangs = True
            self._note_trouble(error)

    def _look(self) -> None:
        """Reads the files if they changed, and notes as trouble that they cannot be used."""
        stamps = self._stamps_now()
        if stamps == self._stamps:
            if self._hangs:
                self._hangs, self._trouble = False, self._unusable
                _LOG.info("%s can be looked at again", self._name)
            return
        self._stamps, self._hangs = stamps, False
        try:
            self._value = self._read()
        except (ValueError, OSError) as error:
            self._note_trouble(error)
            self._unusable = self._trouble
        else:
            self._trouble = self._unusable = ""
            _LOG.info("%s changed: read again", self._name)

    def _note_trouble(self, error: ValueError | OSError) -> None:
        """Notes an error as trouble, and logs it unless it is the same as before."""
        trouble = f"{error}; what was read before stays in use"
        if trouble != self._trouble:
            self._trouble = trouble
            what = "cannot be looked at" if self._hangs else "changed and cannot be used"
            _LOG.error("%s %s: %s", self._name, what, trouble)

    def _stamps_now(self) -> list[Stamp | None]:
        """Returns the stamp of each file."""
        return [stamp_of(path) for path in self._paths]
