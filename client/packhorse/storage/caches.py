"""What is kept in memory: values as long as there is room, and the content of files until these change.

Owns which value goes first (the one used longest ago), noticing a change, and what stays in use where the new content
is wrong. Leaves the content of files to its reader.
"""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from packhorse.storage.plain_files import look_at

_LOG = logging.getLogger(__name__)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


PATIENCE_SECONDS = 1.0
"""How long whoever needs a watched file waits for its file system: calls to a server wait meanwhile."""


def _one(value: Any) -> int:
    return 1


class BoundedCache(Generic[_Key, _Value]):
    """Values by key. Safe to be used by many threads; pickled and copied, it is empty.

    The value used last always stays, also where it alone exceeds the limit.

    Example:
        >>> cache = BoundedCache(10, size_of=len)
        >>> cache.get("a", lambda: "six   "), cache.get("b", lambda: "five "), cache.find("a")
        ('six   ', 'five ', None)

    Args:
        most: size of all values together.
        size_of: of one value, the same each time; where it is left out, each counts 1.
    """

    def __init__(self, most: int, size_of: Callable[[_Value], int] = _one) -> None:
        self.most = most
        self._size_of = size_of
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["BoundedCache[_Key, _Value]"], tuple[int, Callable[[_Value], int]]]:
        return BoundedCache, (self.most, self._size_of)

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Returns a value, made where it is missing; of two threads that make it at once, the first one's is kept."""
        found = self.find(key)
        return self.put(key, make()) if found is None else found

    def find(self, key: _Key) -> _Value | None:
        """Returns a value, which counts as used; None if it is missing."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Keeps a value unless the key has one already, and returns the one that is kept."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
            self._values.move_to_end(key)
            value = self._values[key]
            while len(self._values) > 1 and self._size > self.most:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
            return value

    def drop(self, is_unwanted: Callable[[_Key], bool]) -> None:
        """Lets go of the values of some keys."""
        with self._lock:
            for key in list(filter(is_unwanted, self._values)):
                self._size -= self._size_of(self._values.pop(key))


Stamp: TypeAlias = tuple[int, int, int]
"""(inode, size in bytes, time of change in nanoseconds) of a file."""


def stamp_of(path: Path | str) -> Stamp | None:
    """Returns the stamp of a file; None if there is none, or it may not be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Watched(Generic[_Value]):
    """What some files say now. Safe to be used by many threads.

    Files that changed into something unusable (half copied, say), or whose file system hangs, leave the value before
    them in use. The log says so once, and `trouble` as long as it lasts.

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
        fresh_seconds: files are looked at again when the last look is older.

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
        self._hangs = False  # they did not answer when they were last looked at
        self._stamps = look_at(self._key, self._now)  # before the files are read, so that no change between is missed
        self._value = read()
        self._looked_at = time.monotonic()

    def get(self) -> _Value:
        """Returns what the files say, or said when they were last usable; waits PATIENCE_SECONDS for them at most."""
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
        self._looked_at = time.monotonic()
        try:
            look_at(self._key, self._look, PATIENCE_SECONDS)
        except TimeoutError as error:
            self._hangs = True
            self._fail(error)

    def _look(self) -> None:
        stamps = self._now()
        if stamps == self._stamps:
            if self._hangs:
                self._hangs, self._trouble = False, ""
                _LOG.info("%s can be looked at again", self._name)
            return
        self._stamps, self._hangs = stamps, False
        try:
            self._value = self._read()
        except (ValueError, OSError) as error:
            self._fail(error)
        else:
            self._trouble = ""
            _LOG.info("%s changed: read again", self._name)

    def _fail(self, error: ValueError | OSError) -> None:
        trouble = f"{error}; what was read before stays in use"
        if trouble != self._trouble:
            self._trouble = trouble
            _LOG.error(
                "%s %s: %s", self._name, "cannot be looked at" if self._hangs else "changed and cannot be used", trouble
            )

    def _now(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in self._paths]
