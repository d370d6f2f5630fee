"""Freed memory that stays with the process, because the next block of a stream needs as much again.

Owns the settings of the C library's allocator. By default glibc returns the memory of large messages to the kernel as
soon as they are freed, and gets it back page by page, zeroed. For a stream of blocks that costs as much as making
them.
"""

import ctypes
import os

KEPT_BYTES = 16 << 20
"""What the allocator keeps of freed memory at the end of each of its heaps."""

MAPPED_BYTES = 4 << 20
"""Allocations of this size and more are still mapped by themselves, and returned when they are freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def give_back_freed_memory() -> bool:
    """Returns all freed memory to the kernel once, where the C library is glibc: for use after work done only once.

    Returns:
        Whether there was any.

    Example:
        >>> give_back_freed_memory() in (True, False)
        True
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False


def keep_freed_memory() -> bool:
    """Lets the process keep freed memory for its next blocks, where the C library is glibc.

    Settings of the environment (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`) take precedence.

    Returns:
        Whether it was set.

    Example:
        >>> keep_freed_memory() in (True, False)
        True
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return all([mallopt(_MMAP_THRESHOLD, MAPPED_BYTES), mallopt(_TRIM_THRESHOLD, KEPT_BYTES)])
