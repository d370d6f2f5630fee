"""`CachedObject`: an object of a store that is read in blocks, through the node's disk.

Leaves the files of blocks to `node_cache`, fetching them ahead to `read_ahead`, and asking the store to
`formats.object_store`.
"""

from collections.abc import Callable
from pathlib import Path

from packhorse.formats.object_store import StoredObject, without_secrets
from packhorse.formats.range_file import RangeFile
from packhorse.tokens.stored.node_cache import KeptFile
from packhorse.tokens.stored.store_cache import StoreCache

_COPIED_BYTES = 1 << 24
"""Bytes of one request when a whole object is copied."""


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
        self._patience_seconds = store.options.attempt_seconds  # of waiting for another process that fetches a block

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
        patience = self.object.options.retry.deadline_seconds  # mostly longer than for a block: a copy is many requests
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
    # The end is cut first: in a single part, cutting the beginning would move it.
    parts[-1] = parts[-1][: end - last * block_bytes]
    parts[0] = parts[0][begin - first * block_bytes :]
    return parts[0] if len(parts) == 1 else b"".join(parts)
