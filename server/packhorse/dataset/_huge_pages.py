"""Pools in huge pages, where the system has them: entries all over a file are then found in half the time.

Owns the asking, and when not to ask. Leaves to the system whether it grants it: Linux does for files that it reads from
then on, on file systems with large folios (ext4 from 6.16 on, XFS, btrfs).
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path

HUGE_PAGE_BYTES = 1 << 21

_FILES_IN_MEMORY = 4
"""Only files that fit into memory so often: of one that does not fit, each entry would cost reading a huge page."""

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Where a container's control group says how much memory it may use."""


def ask_for_huge_pages(mapped: mmap.mmap) -> None:
    """Asks that a mapped file is read and mapped 2 MiB at a time; does nothing where that cannot be."""
    if hasattr(mmap, "MADV_HUGEPAGE") and HUGE_PAGE_BYTES <= len(mapped) <= memory_bytes() // _FILES_IN_MEMORY:
        with suppress(OSError):  # a system without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)


def memory_bytes(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns how much memory this process may use: the machine's, or its container's where that is less.

    Args:
        control_group: where it is mounted.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((control_group / name).read_text()))
    return min(limits)
