"""The folder's array files: made with their disk space, written by ranges, and mapped only as the manifest implies.

Owns the one header that an array file can have; leaves what the numbers mean to others.
"""

import errno
import io
import math
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.plain_files import PreparedDatasetError, named, open_file

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
    """Returns how much memory this process may use: the machine's, or its container's where that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((control_group / name).read_text()))
    return min(limits)


_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_ZEROS = bytes(1 << 20)


def create_array(path: Path, dtype_name: str, shape: tuple[int, ...]) -> None:
    """Makes an array file of zeros that owns its disk space, so that writing through a map cannot run out of it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     create_array(Path(folder, "pools.npy"), "uint32", (3,))
        ...     np.load(Path(folder, "pools.npy"))
        array([0, 0, 0], dtype=uint32)

    Args:
        path: the file; nothing is there yet.
        dtype_name: "uint32" or "int64"; stored little-endian.
        shape: of the array.

    Raises:
        OSError: the disk is full (ENOSPC), or the file cannot be made. Its size then says how much was wanted.
    """
    header = _header(dtype_name, shape)
    with path.open("xb") as file:
        file.write(header)
        file.flush()
        _reserve(file.fileno(), _num_bytes(header, dtype_name, shape))


def write_entries(path: Path, first: int, values: NDArray[Any]) -> None:
    """Writes consecutive entries of an array file that is there, and touches no other byte of it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     create_array(Path(folder, "pools.npy"), "uint32", (4,))
        ...     write_entries(Path(folder, "pools.npy"), 1, np.array([7, 8], dtype=np.uint32))
        ...     np.load(Path(folder, "pools.npy"))
        array([0, 7, 8, 0], dtype=uint32)

    Args:
        path: a file of `create_array`.
        first: the entry to begin with.
        values: [n] or [n, 2], of the file's type.
    """
    if not len(values):
        return
    with path.open("r+b", buffering=0) as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        at = file.tell() + first * (values.nbytes // len(values))
        left = np.ascontiguousarray(values, _dtype(values.dtype.name)).data.cast("B")
        while left:
            written = os.pwrite(file.fileno(), left, at)
            left, at = left[written:], at + written


@contextmanager
def growing_array(path: Path, dtype_name: str, num_columns: int | None) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Gives a function that appends rows to a new array file, whose length is known at the end only.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with growing_array(Path(folder, "members.npy"), "int64", 2) as append:
        ...         append(np.array([[7, 5], [8, 3]]))
        ...     np.load(Path(folder, "members.npy")).tolist()
        [[7, 5], [8, 3]]

    Args:
        path: the file; nothing is there yet.
        dtype_name: as in `create_array`.
        num_columns: of every row; None for an array of one dimension.
    """
    num_rows = 0

    def header_of(num: int) -> bytes:
        return _header(dtype_name, (num,) if num_columns is None else (num, num_columns))

    with path.open("xb") as file:
        file.write(bytes(len(header_of(0))))

        def append(rows: NDArray[Any]) -> None:
            nonlocal num_rows
            file.write(np.ascontiguousarray(rows, _dtype(dtype_name)).data.cast("B") if len(rows) else b"")
            num_rows += len(rows)

        yield append
        header = header_of(num_rows)
        assert len(header) == len(header_of(0))  # padded to 128 bytes for any length
        file.seek(0)
        file.write(header)


def map_array(path: Path, dtype_name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Maps an array file read-only.

    Its header can only be the one that type and shape imply; NumPy never parses another.

    Raises:
        PreparedDatasetError: the file is missing, or is not such an array.
    """
    header = _header(dtype_name, shape)
    wanted_bytes = _num_bytes(header, dtype_name, shape)
    with open_file(path) as file:
        begins = file.read(len(header))
        num_bytes = os.fstat(file.fileno()).st_size
        if begins != header or num_bytes != wanted_bytes:
            raise PreparedDatasetError(
                f"{named(path)} was truncated or altered: it is no array of {dtype_name} {list(shape)}, as the "
                f"manifest states, in {wanted_bytes} bytes; it has {num_bytes} bytes"
            )
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    ask_for_huge_pages(mapped)
    return np.ndarray(shape, _dtype(dtype_name), mapped, offset=len(header))


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("<")


def _header(dtype_name: str, shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    content = {"descr": _dtype(dtype_name).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, content)
    return header.getvalue()


def _num_bytes(header: bytes, dtype_name: str, shape: tuple[int, ...]) -> int:
    return len(header) + math.prod(shape) * _dtype(dtype_name).itemsize


def _reserve(descriptor: int, num_bytes: int) -> None:
    """Extends a file to a size and claims the disk space for it, by writing zeros where there is no other way."""
    begins = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, num_bytes)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, num_bytes)
            return
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
    while begins < num_bytes:
        begins += os.pwrite(descriptor, _ZEROS[: num_bytes - begins], begins)
