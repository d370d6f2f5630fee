"""Blocks that all processes of a node share on its disk: parts of a store's objects, or columns decoded from them.

Owns four promises: a block is there whole or not at all; a block that was altered on disk is noticed; all blocks
together stay about within their limit; a block that several processes need is fetched by one of them. Also owns
fetching blocks ahead, in threads. Leaves asking the store to `formats.object_store`.
"""

import logging
import mmap
import operator
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.formats.object_store import RangeFile, StoredObject, StoreOptions, without_secrets
from packhorse.storage import BoundedCache, LockHeldError, hold_lock, try_lock

_LOG = logging.getLogger(__name__)
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item", bound="_Sized")

DEFAULT_CACHE_BYTES = 1 << 34
DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_READ_AHEAD_BYTES = 1 << 26

_COPIED_BYTES = 1 << 24
"""Bytes of one request when a whole object is copied."""
_KEPT_BLOCKS = 256
"""Blocks that a process holds open."""
_SUFFIX = ".block"
_SUM_BYTES = 8
"""Bytes of the checksum at the end of a block's file."""
_LOCKS = 64
"""Lock files; blocks share them, so two blocks rarely wait for each other."""
_KEPT_SHARE = 0.9
"""Share of the limit that stays when old blocks are removed, so that not every new block removes one."""
_LOOKS_PER_LIMIT = 32
"""How often a process checks the limit while it writes as many bytes as the limit allows."""
_ABANDONED_SECONDS = 3600.0
"""Age after which a temporary file that nobody writes to must be a killed process's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCache:
    """Options of the cache on the node's disk, which all its processes share: blocks of objects, and decoded columns.

    Example:
        >>> StoreCache(cache_folder="token-cache", block_bytes=1 << 18).cache_bytes >> 30
        16

    Raises:
        ValueError: a number is out of range.
    """

    cache_folder: str | os.PathLike[str] | None = None
    """Folder on a local disk of the node; None for `~/.cache/packhorse/tokens`."""
    cache_bytes: int = DEFAULT_CACHE_BYTES
    """About how many bytes of blocks it may hold."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """Bytes of one read."""
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES
    """About how many bytes each process fetches ahead."""
    keeps_decoded: bool = False
    """Whether columns of Parquet files, and of Arrow files in a store, are kept there decoded too: one process decodes
    each row group, and all map it. They take about the bytes of their tokens, also for files on a local disk."""
    options: StoreOptions = field(default_factory=StoreOptions)
    """How to reach the store."""

    def __post_init__(self) -> None:
        if min(self.cache_bytes, self.block_bytes) < 1 or self.read_ahead_bytes < 0:
            raise ValueError("cache_bytes and block_bytes must be at least 1, read_ahead_bytes at least 0")

    def open(self) -> "BlockCache":
        """Makes the folder; an OSError if it cannot be made."""
        return BlockCache(Path(self.cache_folder or Path.home() / ".cache" / "packhorse" / "tokens"), self.cache_bytes)


class CachedObject:
    """An object in a store that is read in blocks, through the node's disk. It pickles by URL; threads may share it."""

    def __init__(self, url: str, store: StoreCache) -> None:
        """Asks for the object's size and version.

        Raises:
            FileNotFoundError, ImportError, PermissionError, TokenStoreError, ValueError: see `StoredObject`.
        """
        self.url = url
        self.object = StoredObject(url, store.options)
        self._cache = store.open()
        self._block_bytes = store.block_bytes
        self._patience_seconds = store.options.attempt_seconds

    def block(self, number: int) -> memoryview:
        """Returns bytes [number · block_bytes, (number + 1) · block_bytes), fewer of the last."""
        begin = number * self._block_bytes
        end = min(begin + self._block_bytes, self.object.size_bytes)
        return self._cache.block(
            self.object.key, number, lambda: self.object.read(begin, end), patience_seconds=self._patience_seconds
        )

    def read(self, begin: int, end: int) -> bytes:
        """Returns bytes [begin, end)."""
        return bytes(_joined(self.block, begin, end, self._block_bytes))

    @property
    def size_bytes(self) -> int:
        """The object's size."""
        return self.object.size_bytes

    def copied(self) -> "KeptFile":
        """Copies the whole object to the cache's folder, once for the node; the copy stays while the result exists."""

        def fetch(path: Path) -> None:
            with path.open("wb") as file:
                for begin in range(0, self.size_bytes, _COPIED_BYTES):
                    file.write(self.object.read(begin, min(begin + _COPIED_BYTES, self.size_bytes)))

        name = without_secrets(self.url).rpartition("/")[2]
        patience = self.object.options.retry.deadline_seconds
        return self._cache.whole(self.object.key, name, fetch, patience_seconds=patience)

    def file(self) -> RangeFile:
        """Returns the object as a file whose bytes come through the cache."""
        return RangeFile(self.read, self.size_bytes)


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
        """Returns an object that is kept as one file; if it is not on disk, `fetch` writes it to a path.

        The file stays as long as any process holds the result. `patience_seconds` is as for `block`.
        """
        path = self.folder / key / name
        with suppress(FileNotFoundError):
            kept = KeptFile(path)
            os.utime(path)
            return kept
        with self._alone(key, 0, patience_seconds):
            if not path.exists():
                with _appearing(path) as partial:
                    fetch(partial)
        kept = KeptFile(path)
        self._count(path.stat().st_size)
        return kept

    def _keep(self, path: Path, data: bytes) -> None:
        """Writes a block; if it cannot be written, as on a full disk, logs that and does not keep it."""
        try:
            with _appearing(path) as partial, partial.open("wb") as file:
                file.write(data)
                file.write(_sum_of(data))
            self._count(len(data))
        except OSError as error:
            _LOG.warning("%s: a block is not kept: %s", self.folder, error)

    def _count(self, size_bytes: int) -> None:
        """Counts bytes that this process wrote, and checks the limit once in a while."""
        self._written_bytes += size_bytes
        if self._written_bytes * _LOOKS_PER_LIMIT >= self.max_bytes:
            self._written_bytes = 0
            self._evict()

    def _evict(self) -> None:
        """If files exceed the limit, removes those opened least recently, except files in use.

        Also removes temporary files that killed processes left.
        """
        # If another process holds the lock, it is removing blocks already.
        with suppress(LockHeldError), hold_lock(self.folder / "locks" / "evict", wait_seconds=0):
            blocks: list[tuple[int, int, str]] = []  # (time of last use in ns, bytes, path)
            for folder in (entry for entry in os.scandir(self.folder) if entry.is_dir() and entry.name != "locks"):
                for entry in os.scandir(folder):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        if not entry.name.startswith("."):
                            blocks.append((status.st_mtime_ns, status.st_size, entry.path))
                        elif time.time() - status.st_mtime > _ABANDONED_SECONDS:  # a younger one may be written now
                            os.unlink(entry.path)
            left = sum(size for _, size, _ in blocks)
            if left <= self.max_bytes:
                return
            for _, size, path in sorted(blocks):
                if left <= self.max_bytes * _KEPT_SHARE:
                    break
                if _removed(Path(path)):  # a process that has it mapped can still read it
                    left -= size

    @contextmanager
    def _alone(self, key: str, number: int, patience_seconds: float) -> Iterator[None]:
        """Holds the lock of a block; after `patience_seconds` goes on without it, since the holder may be stuck."""
        stripe = xxhash.xxh32_intdigest(f"{key} {number}".encode()) % _LOCKS
        with ExitStack() as held:
            with suppress(LockHeldError):
                held.enter_context(hold_lock(self.folder / "locks" / f"{stripe:02}", wait_seconds=patience_seconds))
            yield


class KeptFile:
    """A whole file of a cache, which is not removed while this object exists. It pickles by path."""

    def __init__(self, path: Path) -> None:
        """Opens the file; a FileNotFoundError if it is missing, or being removed."""
        self.path = path
        self._file = path.open("rb")
        while not try_lock(self._file, shared=True):  # another process is about to remove it
            time.sleep(0.001)
        if not os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
            raise FileNotFoundError(f"{path} was removed")

    def __reduce__(self) -> tuple[type["KeptFile"], tuple[Path]]:
        return KeptFile, (self.path,)


def _removed(path: Path) -> bool:
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


def _read(path: Path) -> memoryview | None:
    """Maps a block; returns None if it is missing, or if its checksum is wrong, and then removes it."""
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
        os.utime(path)  # blocks opened least recently are removed first
    return data


def _sum_of(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(data)


class _Sized(Protocol):
    """An item whose size is known."""

    @property
    def nbytes(self) -> int: ...


class FetchAhead(Generic[_Key, _Item]):
    """Items that a process fetches before it needs them. Threads may share it; in a forked process it begins empty.

    Example:
        >>> squares = FetchAhead(lambda number: np.int64(number**2), ahead=2, keep_bytes=1 << 20)
        >>> squares.expect([3, 4, 5])
        >>> int(squares.get(3)), int(squares.get(4))
        (9, 16)
    """

    def __init__(self, fetch: Callable[[_Key], _Item], *, ahead: int, keep_bytes: int, threads: int = 16) -> None:
        """Begins with no item.

        Args:
            fetch: returns the item of a key; called in any thread.
            ahead: how many items are fetched ahead; 0 for none.
            keep_bytes: size of the fetched items that are kept; the last one always is.
            threads: most threads that fetch.
        """
        self._fetch = fetch
        self.ahead = ahead
        self._keep_bytes = keep_bytes
        self._most_threads = min(threads, ahead)
        self._begin()

    def _begin(self) -> None:
        """Makes the state that belongs to this process: items, expectations, threads and their lock."""
        self._process = os.getpid()
        self._open = BoundedCache[_Key, _Item](self._keep_bytes, size_of=operator.attrgetter("nbytes"))
        self._coming: OrderedDict[_Key, Future[_Item]] = OrderedDict()  # handed to the threads
        self._expected: list[_Key] = []  # not yet handed to the threads, the next one last
        self._wanted: queue.SimpleQueue[tuple[_Key, Future[_Item]]] = queue.SimpleQueue()
        self._num_threads = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_fetch", "ahead", "_keep_bytes", "_most_threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def expect(self, keys: Sequence[_Key]) -> None:
        """Begins to fetch items that are needed soon, in order, and drops what only an earlier call expected."""
        if self._process != os.getpid():  # threads and locks do not survive a fork
            self._begin()
        wanted = set(keys)
        with self._lock:
            self._expected = list(keys[::-1])
            for key in [key for key in self._coming if key not in wanted]:
                self._coming.pop(key).cancel()
        self._fetch_ahead()

    def get(self, key: _Key) -> _Item:
        """Returns an item, after waiting for it or fetching it; raises what fetching raised."""
        if self._process != os.getpid():
            self._begin()
        item = self._open.find(key)
        if item is None:
            with self._lock:
                coming = self._coming.pop(key, None)
            item = self._fetch(key) if coming is None or coming.cancel() else coming.result()
            item = self._open.put(key, item)
            self._fetch_ahead()
        return item

    def _fetch_ahead(self) -> None:
        """Hands items to the threads, up to `ahead`."""
        with self._lock:
            while self._expected and len(self._coming) < self.ahead:
                key = self._expected.pop()
                if key in self._coming or self._open.find(key) is not None:
                    continue
                future: Future[_Item] = Future()
                self._coming[key] = future
                self._wanted.put((key, future))
                if self._num_threads < self._most_threads:
                    # Not a ThreadPoolExecutor: a process that ends would wait for its threads.
                    self._num_threads += 1
                    threading.Thread(target=self._serve, name="packhorse-read-ahead", daemon=True).start()

    def _serve(self) -> None:
        """Fetches the items that are handed to the threads; runs in a thread, for ever."""
        while True:
            key, future = self._wanted.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._fetch(key))
            except BaseException as error:  # raised where the item is asked for
                future.set_exception(error)


class ReadAhead:
    """Ranges of bytes of several numbered objects, read in blocks that are fetched ahead."""

    def __init__(self, open_object: Callable[[int], CachedObject], store: StoreCache) -> None:
        self._open_object = open_object
        self._block_bytes = size = store.block_bytes
        self._blocks = FetchAhead(self._block, ahead=store.read_ahead_bytes // size, keep_bytes=_KEPT_BLOCKS * size)

    def expect(self, numbers: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Begins to fetch the blocks of S ranges, in order.

        Args:
            numbers: object of each range: int64 [S].
            begins: first byte of each range: int64 [S].
            ends: exclusive end of each range, in bytes: int64 [S].
        """
        firsts = begins // self._block_bytes
        several = np.where(ends > begins, -(-ends // self._block_bytes) - firsts, 0)
        blocks = np.arange(several.sum()) + np.repeat(firsts - several.cumsum() + several, several)
        keys = zip(np.repeat(numbers, several).tolist(), blocks.tolist(), strict=True)
        self._blocks.expect(list(dict.fromkeys(keys)))

    def read(self, number: int, begin: int, end: int) -> memoryview:
        """Returns bytes [begin, end) of an object; a view if they are in one block."""
        first = begin // self._block_bytes
        offset = first * self._block_bytes
        if begin < end <= offset + self._block_bytes:
            return self._blocks.get((number, first))[begin - offset : end - offset]
        return memoryview(_joined(lambda block: self._blocks.get((number, block)), begin, end, self._block_bytes))

    def _block(self, key: tuple[int, int]) -> memoryview:
        number, block = key
        return self._open_object(number).block(block)


def _joined(block: Callable[[int], memoryview], begin: int, end: int, block_bytes: int) -> memoryview | bytes:
    """Returns bytes [begin, end) of an object from its blocks, `block(number)`; a view if they are in one block."""
    first = begin // block_bytes
    parts = [block(number) for number in range(first, -(-end // block_bytes))] if begin < end else [memoryview(b"")]
    parts[-1] = parts[-1][: end - (first + len(parts) - 1) * block_bytes]
    parts[0] = parts[0][begin - first * block_bytes :]
    return parts[0] if len(parts) == 1 else b"".join(parts)
