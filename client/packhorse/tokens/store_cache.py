"""`StoreCache`, the options of the cache on a node's disk, and objects of a store that are read through it in blocks.

Leaves the files of blocks to `node_cache`, fetching them ahead to `read_ahead`, and asking the store to
`formats.object_store`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from packhorse.formats.files import RangeFile
from packhorse.formats.object_store import StoredObject, StoreOptions, without_secrets
from packhorse.tokens.node_cache import BlockCache, KeptFile

DEFAULT_CACHE_BYTES = 1 << 34
DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_READ_AHEAD_BYTES = 1 << 26

_COPIED_BYTES = 1 << 24
"""Bytes of one request when a whole object is copied."""


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

    def open(self) -> BlockCache:
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
        return bytes(joined(self.block, begin, end, self._block_bytes))

    @property
    def size_bytes(self) -> int:
        """The object's size."""
        return self.object.size_bytes

    def copied(self) -> KeptFile:
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


def joined(block: Callable[[int], memoryview], begin: int, end: int, block_bytes: int) -> memoryview | bytes:
    """Returns bytes [begin, end) of an object from its blocks, `block(number)`; a view if they are in one block."""
    if begin >= end:
        return b""
    first, last = begin // block_bytes, (end - 1) // block_bytes
    parts = [block(number) for number in range(first, last + 1)]
    parts[-1] = parts[-1][: end - last * block_bytes]
    parts[0] = parts[0][begin - first * block_bytes :]
    return parts[0] if len(parts) == 1 else b"".join(parts)
