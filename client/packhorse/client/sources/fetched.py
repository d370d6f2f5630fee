"""What is fetched from object stores: kept on the node's disk, and read ahead of the stream.

Owns which pieces are open, which are on their way and which come next; leaves what a piece is, and fetching it, to the
sources.
"""

import os
import queue
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._blocks import DEFAULT_CACHE_BYTES, BlockCache, KeptFile, default_cache_folder
from packhorse.client.sources.base import TokenSource
from packhorse.formats.object_store import RangeFile, StoredObject, StoreOptions, without_secrets

_Key = TypeVar("_Key", bound=Hashable)
_Piece = TypeVar("_Piece")


class FetchedAhead(Generic[_Key, _Piece]):
    """A process's pieces: some open, some on their way, and those that are expected. Threads share it.

    Example:
        >>> squares = FetchedAhead(lambda number: number**2, ahead=2)
        >>> squares.expect([3, 4, 5])
        >>> squares.get(3), squares.get(4)
        (9, 16)
    """

    def __init__(
        self,
        fetch: Callable[[_Key], _Piece],
        *,
        ahead: int,
        threads: int = 16,
        keep: int = 256,
        size_of: Callable[[_Piece], int] = lambda _: 1,
    ) -> None:
        """Begins with none.

        Args:
            fetch: gives a piece, from any thread.
            ahead: pieces that are on their way or waiting at a time; 0 fetches none before it is asked for.
            threads: that fetch, at most.
            keep: what open pieces may have together, at most; the last one always stays.
            size_of: what a piece has of it; one each where left out.
        """
        self.process = os.getpid()
        self._fetch = fetch
        self._ahead = ahead
        self._most_threads = min(threads, ahead)
        self._keep = keep
        self._size_of = size_of
        self._open: OrderedDict[_Key, _Piece] = OrderedDict()
        self._open_size = 0
        self._coming: OrderedDict[_Key, Future[_Piece]] = OrderedDict()
        self._expected: list[_Key] = []
        self._wanted: queue.SimpleQueue[tuple[_Key, Future[_Piece]]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def expect(self, keys: Sequence[_Key]) -> None:
        """Tells which pieces will be asked for, in order; what was expected before is forgotten."""
        wanted = set(keys)
        with self._lock:
            self._expected = list(keys[::-1])
            for key in [key for key in self._coming if key not in wanted]:
                self._coming.pop(key).cancel()
        self._fetch_ahead()

    def get(self, key: _Key) -> _Piece:
        """Returns a piece; raises what fetching it raised."""
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
            coming = self._coming.pop(key, None)
        piece = self._fetch(key) if coming is None or coming.cancel() else coming.result()
        with self._lock:
            if key not in self._open:
                self._open_size += self._size_of(piece)
            self._open[key] = piece
            while len(self._open) > 1 and self._open_size > self._keep:
                self._open_size -= self._size_of(self._open.popitem(last=False)[1])
        self._fetch_ahead()
        return piece

    def _fetch_ahead(self) -> None:
        """Has as many pieces on their way as may be."""
        with self._lock:
            while self._expected and len(self._coming) < self._ahead:
                key = self._expected.pop()
                if key in self._open or key in self._coming:
                    continue
                future: Future[_Piece] = Future()
                self._coming[key] = future
                self._wanted.put((key, future))
                if len(self._threads) < self._most_threads:
                    # Not a pool of the standard library, whose threads a process waits for when it ends.
                    thread = threading.Thread(target=self._serve, name="packhorse-read-ahead", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _serve(self) -> None:
        while True:
            key, future = self._wanted.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._fetch(key))
            except BaseException as error:  # raised where the piece is asked for
                future.set_exception(error)


class FetchSource(TokenSource):
    """A source that reads or decodes sequences, best many at once.

    `lengths` holds what it fetched until the next `gather` or `lengths`: one batch, which asks for both.
    """

    def __init__(self) -> None:
        self._held: dict[int, NDArray[np.integer]] = {}

    @abstractmethod
    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        """Returns whole sequences in the order of ids; views where they pin no more than a map, else copies.

        Raises:
            TokenSourceError: an id is missing, or its tokens are no integers.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Returns tokens of one sequence; see `TokenSource.read`."""
        tokens = self._held.get(sequence_id)
        if tokens is None:
            tokens = self._fetch(np.array([sequence_id]))[0]
        return tokens[start:] if length is None else tokens[start : start + length]

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns whole sequences' lengths; see `TokenSource.lengths`."""
        fetched = self._fetch(ids)
        self._held = dict(zip(ids.tolist(), fetched, strict=True))
        return np.array([len(tokens) for tokens in fetched], dtype=np.int64)

    def gather(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        out: NDArray[np.integer],
        out_starts: NDArray[np.int64],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> None:
        """Writes many sequences; see `TokenSource.gather`."""
        try:
            missing = list(dict.fromkeys(sequence_id for sequence_id in ids.tolist() if sequence_id not in self._held))
            if missing:
                fetched = self._fetch(np.array(missing))
                self._held |= dict(zip(missing, fetched, strict=True))
            super().gather(ids, lengths, out, out_starts, first_tokens=first_tokens, truncate=truncate)
        finally:
            self._held = {}


DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_READ_AHEAD_BYTES = 1 << 26
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCache:
    """How sources read object stores: through blocks on the node's disk, which all its processes share.

    Example:
        >>> StoreCache(cache_folder="token-cache", block_bytes=1 << 18).cache_bytes >> 30
        16

    Raises:
        ValueError: a number is out of range.
    """

    cache_folder: str | os.PathLike[str] | None = None
    """On a local disk of the node; None for `~/.cache/packhorse/tokens`."""
    cache_bytes: int = DEFAULT_CACHE_BYTES
    """That blocks in it take up at most, about."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """Of one read."""
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES
    """That each process fetches before it is asked for, about."""
    options: StoreOptions = field(default_factory=StoreOptions)
    """How the store is reached."""

    def __post_init__(self) -> None:
        if min(self.cache_bytes, self.block_bytes) < 1 or self.read_ahead_bytes < 0:
            raise ValueError("cache_bytes and block_bytes must be at least 1, read_ahead_bytes at least 0")

    def open(self) -> BlockCache:
        """Makes the folder; an OSError where it cannot be made."""
        return BlockCache(Path(self.cache_folder or default_cache_folder()), self.cache_bytes)


class CachedObject:
    """An object of which blocks are read; it pickles by URL. Threads share it."""

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
        return joined(self.block, begin, end, self._block_bytes)

    @property
    def size_bytes(self) -> int:
        """The object's size."""
        return self.object.size_bytes

    def copied(self) -> KeptFile:
        """Copies the whole object to the cache's folder, once for the node; the copy stays while somebody has it."""

        def fetch(path: Path) -> None:
            with path.open("wb") as file:
                for begin in range(0, self.size_bytes, _PIECE_BYTES):
                    file.write(self.object.read(begin, min(begin + _PIECE_BYTES, self.size_bytes)))

        name = without_secrets(self.url).rpartition("/")[2]
        patience = self.object.options.retry.deadline_seconds
        return self._cache.whole(self.object.key, name, fetch, patience_seconds=patience)

    def file(self) -> RangeFile:
        """Opens it as a file."""
        return RangeFile(self.read, self.object.size_bytes)


def joined(block: Callable[[int], memoryview], begin: int, end: int, block_bytes: int) -> bytes:
    """Returns bytes [begin, end) out of blocks."""
    first = begin // block_bytes
    pieces = [block(number) for number in range(first, -(-end // block_bytes))]
    if not pieces:
        return b""
    pieces[-1] = pieces[-1][: end - (first + len(pieces) - 1) * block_bytes]
    pieces[0] = pieces[0][begin - first * block_bytes :]
    return b"".join(pieces)
