"""Blocks that all processes of a node share on its disk: parts of a store's objects, or columns decoded from them.

Owns four promises: a block is there whole or not at all; a block that was altered on disk is noticed; all blocks
together stay about within their limit; a block that several processes need is fetched by one of them, unless that
takes it too long. Leaves which bytes of an object are a block to `cached_object`, and fetching blocks ahead to
`read_ahead`.
"""

import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import xxhash

from packhorse.storage import LockHeldError, hold_lock, try_lock

_LOG = logging.getLogger(__name__)

_SUFFIX = ".block"
_CHECKSUM_BYTES = 8
"""Bytes of the checksum at the end of a block's file."""
_NUM_LOCKS = 64
"""Lock files; blocks share them, so two blocks rarely wait for each other."""
_KEPT_SHARE = 0.9
"""Share of the limit that stays when old blocks are removed, so that not every new block removes one."""
_LOOKS_PER_LIMIT = 32
"""How often a process checks the limit while it writes as many bytes as the limit allows."""
_ABANDONED_SECONDS = 3600.0
"""Time since the last write after which a temporary file must be a killed process's."""
_POLL_SECONDS = 0.001
"""Time between two tries to lock a kept file."""


class BlockCache:
    """A folder of blocks. It pickles by path."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Makes the folder, on a local disk; an OSError if it cannot be made.

        `max_bytes` limits all files in it together; each process may exceed it by a few percent. Files that are kept
        whole count too, but are not removed while they are in use.
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
        """Returns block `number` of the object `key` from disk; if it is not there, fetches and keeps it.

        If another process is fetching the block, this one waits up to `patience_seconds` and then fetches it too.
        """
        path = self.folder / key / f"{number:010}{_SUFFIX}"
        found = _mapped_block(path)
        if found is not None:
            return found
        with self._locked(key, number, patience_seconds):
            found = _mapped_block(path)
            if found is not None:
                return found
            data = fetch()
            self._keep(path, data)
        return memoryview(data)

    def whole(self, key: str, name: str, fetch: Callable[[Path], None], *, patience_seconds: float) -> "KeptFile":
        """Returns an object that is kept as one file; if it is not on disk, `fetch` writes it to a path.

        The file stays as long as any process holds the result. `patience_seconds` is as for `block`.
        """
        path = self.folder / key / name
        with suppress(FileNotFoundError):
            kept = KeptFile(path)
            os.utime(path)
            return kept
        with self._locked(key, 0, patience_seconds):
            if not path.exists():
                with _appearing(path) as partial:
                    fetch(partial)
        kept = KeptFile(path)  # first, so that the check of the limit below cannot remove it
        self._count_written(path.stat().st_size)
        return kept

    def _keep(self, path: Path, data: bytes) -> None:
        """Writes a block; if it cannot be written, as on a full disk, logs that and does not keep it."""
        try:
            with _appearing(path) as partial, partial.open("wb") as file:
                file.write(data)
                file.write(_checksum(data))
            self._count_written(len(data))
        except OSError as error:
            _LOG.warning("%s: a block is not kept: %s", self.folder, error)

    def _count_written(self, size_bytes: int) -> None:
        """Counts bytes that this process wrote, or found written when it had waited; sometimes checks the limit."""
        self._written_bytes += size_bytes
        if self._written_bytes * _LOOKS_PER_LIMIT >= self.max_bytes:
            self._written_bytes = 0
            self._evict()

    def _evict(self) -> None:
        """If files exceed the limit, removes those opened least recently, except files in use."""
        # If another process holds the lock, it is removing blocks already.
        with suppress(LockHeldError), hold_lock(self.folder / "locks" / "evict", wait_seconds=0):
            files = self._files()
            left_bytes = sum(file.size_bytes for file in files)
            if left_bytes <= self.max_bytes:
                return
            for file in sorted(files):
                if left_bytes <= self.max_bytes * _KEPT_SHARE:
                    break
                if _try_remove(Path(file.path)):  # a process that has it mapped can still read it
                    left_bytes -= file.size_bytes

    def _files(self) -> list["_File"]:
        """Lists all files of the cache, and removes temporary files that killed processes left."""
        files: list[_File] = []
        for folder in (entry for entry in os.scandir(self.folder) if entry.is_dir() and entry.name != "locks"):
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if not entry.name.startswith("."):
                        files.append(_File(status.st_mtime_ns, status.st_size, entry.path))
                    elif time.time() - status.st_mtime > _ABANDONED_SECONDS:  # a younger one may be written now
                        os.unlink(entry.path)
        return files

    @contextmanager
    def _locked(self, key: str, number: int, patience_seconds: float) -> Iterator[None]:
        """Holds the lock of a block; after `patience_seconds` goes on without it, since the holder may be stuck."""
        stripe = xxhash.xxh32_intdigest(f"{key} {number}".encode()) % _NUM_LOCKS
        with ExitStack() as held:
            with suppress(LockHeldError):
                held.enter_context(hold_lock(self.folder / "locks" / f"{stripe:02}", wait_seconds=patience_seconds))
            yield


class _File(NamedTuple):
    """A block, or a file kept whole, as the folder lists it; files sort by their last use."""

    used_ns: int
    """Time of its last use, in nanoseconds since 1970."""
    size_bytes: int
    path: str


class KeptFile:
    """A whole file of a cache, which is not removed while this object exists. It pickles by path."""

    def __init__(self, path: Path) -> None:
        """Opens the file; a FileNotFoundError if it is missing, or being removed."""
        self.path = path
        self._file = path.open("rb")
        while not try_lock(self._file, shared=True):  # another process is about to remove it
            time.sleep(_POLL_SECONDS)
        if not os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
            raise FileNotFoundError(f"{path} was removed")

    def __reduce__(self) -> tuple[type["KeptFile"], tuple[Path]]:
        return KeptFile, (self.path,)


def _try_remove(path: Path) -> bool:
    """Removes a block, or a file kept whole unless it is in use; returns whether it is gone."""
    with suppress(FileNotFoundError):
        if path.name.endswith(_SUFFIX):
            path.unlink()
            return True
        with path.open("rb") as file:
            if not try_lock(file):
                return False
            path.unlink()
    return True


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Yields a temporary path, and renames it to `path` at the end; without a sync: a lost file is fetched again."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _mapped_block(path: Path) -> memoryview | None:
    """Maps a block; returns None if it is missing, or if its checksum is wrong, and then removes it."""
    try:
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        return None
    except ValueError:  # an empty file cannot be mapped
        mapped = memoryview(b"")
    data = mapped[:-_CHECKSUM_BYTES]
    if len(mapped) < _CHECKSUM_BYTES or _checksum(data) != mapped[-_CHECKSUM_BYTES:]:
        _LOG.warning("%s was altered on disk; it is fetched again", path)
        path.unlink(missing_ok=True)
        return None
    with suppress(OSError):
        os.utime(path)  # blocks opened least recently are removed first
    return data


def _checksum(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(data)
