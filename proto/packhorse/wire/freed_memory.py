"""Settings of the C library's allocator: freed memory stays with the process, until it is given back on purpose.

By default glibc returns the memory of large messages to the kernel as soon as they are freed, and gets it back page by
page, zeroed. For a stream of blocks this costs as much processor time as making the blocks.
"""

import ctypes
import os

KEPT_BYTES = 16 << 20
"""Freed memory that the allocator keeps at the end of each of its heaps; what exceeds it goes to the kernel."""

MAPPED_BYTES = 4 << 20
"""Size from which on an allocation is still mapped separately, and returned to the kernel when it is freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def give_back_freed_memory() -> bool:
    """Gives all freed memory back to the kernel, if the C library is glibc. For use after work that is done only once.

    Returns:
        Whether any memory was given back.

    Example:
        >>> give_back_freed_memory() in (True, False)
        True
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False


def keep_freed_memory() -> bool:
    """Lets the process keep freed memory for its next blocks, if the C library is glibc.

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
    # A list, so that the second is set even if the first fails.
    return all([mallopt(_MMAP_THRESHOLD, MAPPED_BYTES), mallopt(_TRIM_THRESHOLD, KEPT_BYTES)])
