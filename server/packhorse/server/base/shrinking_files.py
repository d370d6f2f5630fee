"""Surviving mapped files that are cut while the server reads them: a handler of SIGBUS.

This is a workaround for the system; those for gRPC are in `workarounds`. DESIGN.md says who would notice its absence.
"""

import ctypes
import mmap
import signal
import sys
from typing import Any

_MAP_FIXED, _SA_SIGINFO, _SA_RESTART = 0x10, 4, 0x10000000  # of Linux; Python's modules lack them

_ADDRESS = 2  # index of si_addr among the 64-bit words of siginfo_t


class _Sigaction(ctypes.Structure):
    """struct sigaction of 64-bit Linux, as the C library takes it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_HANDLERS: list[Any] = []
"""Keeps the compiled handler alive for as long as the process."""


def survive_shrinking_files() -> bool:
    """Makes this process survive reads of mapped files that were cut; returns whether it can (on 64-bit Linux).

    Reading a mapped file beyond its new end raises SIGBUS, which would end the process. The handler maps a page of
    zeros there, and the read continues. The bins are then discarded, because the catalog compares the files' sizes
    and times before anything is sent. The handler runs in the thread that reads, without Python's lock, so it is
    compiled. It calls only mmap.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return False
    if _HANDLERS:
        return True
    from numba import carray, cfunc, types  # type: ignore[attr-defined]  # here, because importing it takes long

    libc = ctypes.CDLL(None, use_errno=True)
    map_pages = libc.mmap
    map_pages.restype = ctypes.c_uint64
    map_pages.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    page_bytes, page_mask = mmap.PAGESIZE, 2**64 - mmap.PAGESIZE  # address & page_mask: where its page begins
    protection, flags = mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED

    def on_bus(number: Any, info: Any, context: Any) -> None:
        """Maps a page of zeros over the address that could not be read; `info` is a pointer to siginfo_t."""
        address = carray(info, (_ADDRESS + 1,))[_ADDRESS]
        map_pages(address & page_mask, page_bytes, protection, flags, -1, 0)

    pointer = types.CPointer(types.uint64)  # type: ignore[no-untyped-call]
    handler = cfunc(types.void(types.int32, pointer, pointer))(on_bus)
    action = _Sigaction(handler=handler.address, flags=_SA_SIGINFO | _SA_RESTART)
    if libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), None) != 0:
        return False
    _HANDLERS.append(handler)
    return True
