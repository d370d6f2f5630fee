"""A small set of texts that forked processes share: `SharedSet`.

Leaves caches of one process to `storage/caches`.
"""

import hashlib
import mmap

_ENTRY_BYTES = 16
"""Bytes of a text's hash."""


class SharedSet:
    """A set of texts in one page of memory that a process shares with its forks, without a lock.

    The page consists of slots of 16 bytes, each with the hash of one text; a page of 4 KiB has 256. A text replaces
    another one in the same slot, so the set may forget texts: use it only if that costs no more than time.

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
    """Returns a text's hash, and the bytes of the page that are its slot."""
    entry = hashlib.blake2b(text.encode(), digest_size=_ENTRY_BYTES).digest()
    slot = int.from_bytes(entry[:8], "little") % (mmap.PAGESIZE // _ENTRY_BYTES)
    return entry, slice(slot * _ENTRY_BYTES, (slot + 1) * _ENTRY_BYTES)
