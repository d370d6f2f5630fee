"""Objects of a store, read through the node's cache.

Owns how a trainer's sources reach a store: options, blocks, and objects that look like files. Leaves requests to
`formats.object_store` and blocks on disk to `_blocks`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from packhorse.client.sources._blocks import DEFAULT_CACHE_BYTES, BlockCache, KeptFile, default_cache_folder
from packhorse.formats.object_store import RangeFile, StoredObject, StoreOptions, without_secrets

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
