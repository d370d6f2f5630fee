"""Blocks of objects on a node's disk, shared by all processes of the node.

Owns that a block is whole or not there, that what changed on disk is noticed, that all blocks together stay about
within their limit, and that one process fetches what several want; leaves fetching to its callers.
"""

import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

_LOG = logging.getLogger(__name__)

DEFAULT_CACHE_BYTES = 1 << 34

_SUFFIX = ".block"
_SUM_BYTES = 8
_LOCKS = 64
_KEPT_SHARE = 0.9
"""What stays of the limit when old blocks are removed, so that this is not done for every new one."""
_LOOKS_PER_LIMIT = 32
_ABANDONED_SECONDS = 3600.0
"""A file that was to be kept, and nobody has written to for so long, is of a process that was killed."""
_WAIT_SECONDS = 0.02


def default_cache_folder() -> Path:
    """Returns where blocks are kept unless a source says otherwise."""
    return Path.home() / ".cache" / "packhorse" / "tokens"


class BlockCache:
    """A folder of blocks. It pickles by path."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Makes the folder.

        Args:
            folder: on a local disk.
            max_bytes: that all in it may take up together; reached within a few percent for each process. Files that
                are kept whole count, and stay while they are in use.

        Raises:
            OSError: the folder cannot be made.
        """
        self.folder = folder
        self.max_bytes = max_bytes
        self._written_bytes = 0
        try:
            (folder / "locks").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror}: blocks cannot be kept there; name another cache_folder", str(folder)
            ) from None

    def block(self, key: str, number: int, fetch: Callable[[], bytes], *, patience_seconds: float) -> memoryview:
        """Returns a block, from disk where it is there, else fetched and kept.

        Args:
            key: of the object.
            number: of the block in it.
            fetch: gives its bytes.
            patience_seconds: how long to wait for another process that fetches it, before fetching it as well.
        """
        path = self.folder / key / f"{number:010}{_SUFFIX}"
        found = _read(path)
        if found is not None:
            return found
        with self._alone(key, number, patience_seconds):
            found = _read(path)
            if found is not None:
                return found
            data = fetch()
            self._keep(path, data)
        return memoryview(data)

    def whole(self, key: str, name: str, fetch: Callable[[Path], None], *, patience_seconds: float) -> "KeptFile":
        """Returns a file that is kept whole, and stays as long as any process has what is returned.

        Args:
            key: of the object.
            name: the file's.
            fetch: writes it to a path.
            patience_seconds: as for `block`.
        """
        path = self.folder / key / name
        while True:
            with suppress(FileNotFoundError):
                kept = KeptFile(path)
                os.utime(path)
                return kept
            with self._alone(key, 0, patience_seconds):
                if not path.exists():
                    path.parent.mkdir(exist_ok=True)
                    partial = path.with_name(f".{name}.{os.getpid()}.partial")
                    try:
                        fetch(partial)
                        os.replace(partial, path)
                    finally:
                        partial.unlink(missing_ok=True)
            kept = KeptFile(path)
            self._count(path.stat().st_size)
            return kept

    def _keep(self, path: Path, data: bytes) -> None:
        """Writes a block; one that does not fit on the disk is only not kept."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(exist_ok=True)
            try:
                with partial.open("wb") as file:
                    file.write(data)
                    file.write(_sum_of(data))
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            self._count(len(data))
        except OSError as error:
            _LOG.warning("%s: a block is not kept: %s", self.folder, error)

    def _count(self, size_bytes: int) -> None:
        """Counts what was written, and looks now and then whether it is too much."""
        self._written_bytes += size_bytes
        if self._written_bytes * _LOOKS_PER_LIMIT >= self.max_bytes:
            self._written_bytes = 0
            self._evict()

    def _evict(self) -> None:
        """Removes what was not opened for the longest time, where there is too much; files that are kept stay."""
        with (self.folder / "locks" / "evict").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process is at it
                return
            blocks: list[tuple[int, int, str]] = []
            for folder in (entry for entry in os.scandir(self.folder) if entry.is_dir() and entry.name != "locks"):
                for entry in os.scandir(folder):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        if not entry.name.startswith("."):
                            blocks.append((status.st_mtime_ns, status.st_size, entry.path))
                        elif time.time() - status.st_mtime > _ABANDONED_SECONDS:  # else it is being written
                            os.unlink(entry.path)
            left = sum(size for _, size, _ in blocks)
            if left <= self.max_bytes:
                return
            for _, size, path in sorted(blocks):
                if left <= self.max_bytes * _KEPT_SHARE:
                    break
                if _removed(Path(path)):  # whoever has it mapped keeps it
                    left -= size

    @contextmanager
    def _alone(self, key: str, number: int, patience_seconds: float) -> Iterator[None]:
        """Keeps other processes from fetching the same, but not for ever: one may have stopped while it fetches."""
        stripe = xxhash.xxh32_intdigest(f"{key} {number}".encode()) % _LOCKS
        with (self.folder / "locks" / f"{stripe:02}").open("w") as lock:
            ends = time.monotonic() + patience_seconds
            while time.monotonic() < ends:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_WAIT_SECONDS)
            yield


class KeptFile:
    """A whole file of a cache, which is not removed while this is there. It pickles by path."""

    def __init__(self, path: Path) -> None:
        """Opens the file; a FileNotFoundError where it is not there, or goes at this very moment."""
        self.path = path
        self._file = path.open("rb")
        fcntl.flock(self._file, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
            raise FileNotFoundError(f"{path} was replaced")

    def __reduce__(self) -> tuple[type["KeptFile"], tuple[Path]]:
        return KeptFile, (self.path,)


def _removed(path: Path) -> bool:
    """Removes a block, or a file that nobody keeps; says whether it is gone."""
    with suppress(FileNotFoundError):
        if path.name.endswith(_SUFFIX):
            path.unlink()
            return True
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            path.unlink()
    return True


def _read(path: Path) -> memoryview | None:
    """Maps a block and compares it with its checksum; one that does not match is removed."""
    try:
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        return None
    except ValueError:  # an empty file cannot be mapped
        mapped = memoryview(b"")
    data = mapped[:-_SUM_BYTES]
    if len(mapped) < _SUM_BYTES or _sum_of(data) != mapped[-_SUM_BYTES:]:
        _LOG.warning("%s was altered on disk; it is fetched again", path)
        path.unlink(missing_ok=True)
        return None
    with suppress(OSError):
        os.utime(path)  # the blocks that nobody opens are removed first
    return data


def _sum_of(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(data)
