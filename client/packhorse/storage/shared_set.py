"""A small set of texts that forked processes share: `SharedSet`.

It may forget, so it is for what costs only time to do again. Leaves caches of one process to `storage/caches`.
"""

import hashlib
import mmap

_ENTRY_BYTES = 16
"""Bytes of an entry of a `SharedSet`: a text's hash."""


class SharedSet:
    """A set of texts in one page of memory that a process shares with its forks, without a lock.

    The page has 256 slots of 16 bytes, each with the hash of a text. A text that comes to another's slot replaces it,
    so the set may forget texts; use it only if that costs nothing but time.

    Example:
        >>> known = SharedSet()
        >>> known.add("a")
        >>> "a" in known, "b" in known
        (True, False)
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def add(self, text: str) -> None:
        """Adds a text, for this process and all its forks."""
        entry, slot = _entry_of(text)
        self._memory[slot] = entry

    def __contains__(self, text: str) -> bool:
        """Whether any of these processes has added the text. An entry that is only half written does not count."""
        entry, slot = _entry_of(text)
        return self._memory[slot] == entry


def _entry_of(text: str) -> tuple[bytes, slice]:
    """Returns a text's hash, and the bytes of the page where it belongs."""
    entry = hashlib.blake2b(text.encode(), digest_size=_ENTRY_BYTES).digest()
    first = int.from_bytes(entry[:8], "little") % (mmap.PAGESIZE // _ENTRY_BYTES) * _ENTRY_BYTES
    return entry, slice(first, first + _ENTRY_BYTES)
