"""A mapped file that is cut while it is read must not kill the server.

Reading a page of a mapped file beyond the file's new end raises SIGBUS. That ends the process, and with it every stream
of every dataset. Here the signal puts a page of zeros in that place, and the read goes on. What was read is then thrown
away, because the catalog looks at the files' sizes before anything is sent (`Catalog.confirm`).

Without it, who overwrites a dataset's file where it lies (cp or rsync --inplace over a served folder) ends the streams
of everybody's datasets.

Owns the signal's handler. It is compiled, because it runs in whatever thread reads, without Python's lock; and it calls
nothing but mmap.
"""

import ctypes
import mmap
import signal
import sys
from typing import Any

from numba import carray, cfunc, types  # type: ignore[attr-defined]

_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_uint64
_map.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]

_PAGE = mmap.PAGESIZE
_PAGE_MASK = ~(mmap.PAGESIZE - 1) & (2**64 - 1)
_READ = mmap.PROT_READ
_MAP_FIXED = 0x10
_OVER_IT = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
_SA_SIGINFO, _SA_RESTART = 4, 0x10000000
_ADDRESS = 2  # si_addr is the third 64-bit word of siginfo_t


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
    """Makes this process outlive reads of mapped files that were cut; returns whether it can here (64-bit Linux)."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return False
    if not _HANDLERS:
        word = types.CPointer(types.uint64)  # type: ignore[no-untyped-call]
        handler = cfunc(types.void(types.int32, word, word))(_on_bus)
        action = _Sigaction(handler=handler.address, flags=_SA_SIGINFO | _SA_RESTART)
        if _libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), None) != 0:
            return False
        _HANDLERS.append(handler)
    return True


def _on_bus(number: Any, info: Any, context: Any) -> None:
    address = carray(info, (_ADDRESS + 1,))[_ADDRESS]
    _map(address & _PAGE_MASK, _PAGE, _READ, _OVER_IT, -1, 0)
