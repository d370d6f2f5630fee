"""What this process and all that it forks know together.

Owns a few hundred texts in shared memory. Workers of a DataLoader are forked again in every epoch, and what one of them
found out would be lost with it otherwise.
"""

import hashlib
import mmap

_ENTRY_BYTES = 16


class SharedSet:
    """A set of texts that forks share; forgets one where another takes its slot.

    Example:
        >>> known = SharedSet()
        >>> known.add("a")
        >>> "a" in known, "b" in known
        (True, False)
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def add(self, text: str) -> None:
        """Adds a text, for this process, those that it forked and those that it will fork."""
        entry, slot = _entry_of(text)
        self._memory[slot] = entry

    def __contains__(self, text: str) -> bool:
        """Whether any of these processes has added it. Half an entry, while one is being written, is none."""
        entry, slot = _entry_of(text)
        return self._memory[slot] == entry


def _entry_of(text: str) -> tuple[bytes, slice]:
    entry = hashlib.blake2b(text.encode(), digest_size=_ENTRY_BYTES).digest()
    first = int.from_bytes(entry[:8], "little") % (mmap.PAGESIZE // _ENTRY_BYTES) * _ENTRY_BYTES
    return entry, slice(first, first + _ENTRY_BYTES)
