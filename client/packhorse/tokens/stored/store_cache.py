"""`StoreCache`: the options of the cache on a node's disk, with their defaults.

Leaves the cache itself to `node_cache`, and objects of a store that are read through it to `cached_object`.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from packhorse.formats.object_store import StoreOptions
from packhorse.tokens.stored.node_cache import BlockCache

DEFAULT_CACHE_BYTES = 1 << 34  # 16 GiB
DEFAULT_BLOCK_BYTES = 1 << 20  # 1 MiB
DEFAULT_READ_AHEAD_BYTES = 1 << 26  # 64 MiB


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
    """About how many bytes it may hold, of blocks and of objects that are kept whole."""
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
        """Opens the cache, and makes its folder; an OSError if it cannot be made."""
        return BlockCache(Path(self.cache_folder or Path.home() / ".cache" / "packhorse" / "tokens"), self.cache_bytes)
