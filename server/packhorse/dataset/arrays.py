"""The folder's array files: created with their disk space, written by ranges, and mapped as the manifest implies.

Owns the one NumPy header that a file of a type and shape can have. What each file holds is in `layout`, and its type
and shape are given by the caller.
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

from packhorse.dataset.errors import PreparedDatasetError, short_path
from packhorse.dataset.plain_files import open_file
from packhorse.jobs import memory_limit

HUGE_PAGE_BYTES = 1 << 21
"""The size of a huge page, 2 MiB."""

_TIMES_IN_MEMORY = 4
"""Huge pages are used for a file only if it fits into memory this many times. If a file does not stay in memory, each
look at an entry reads a whole page from disk, and a huge page has 512 times the bytes of a small one."""

_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Errors of a file system without posix_fallocate; any other is an error of the disk."""
_ZEROS = bytes(1 << 20)


def create_array(path: Path, dtype_name: str, shape: tuple[int, ...]) -> None:
    """Creates an array file of zeros with all its disk space, so that writing into it later cannot fill the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     create_array(Path(folder, "pools.npy"), "uint32", (3,))
        ...     np.load(Path(folder, "pools.npy"))
        array([0, 0, 0], dtype=uint32)

    Args:
        path: the file, which must not exist.
        dtype_name: "uint32" or "int64"; stored little-endian.
        shape: shape of the array.

    Raises:
        OSError: the file cannot be created, or the disk is full (ENOSPC). In the second case the file stays, with the
            size that it should have had.
    """
    header = _header(dtype_name, shape)
    with path.open("xb") as file:
        file.write(header)
        file.flush()
        _reserve(file.fileno(), _num_bytes(header, dtype_name, shape))


def write_entries(path: Path, first: int, values: NDArray[Any]) -> None:
    """Writes consecutive entries of an existing array file, and touches no other byte, so that tasks can share a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     create_array(Path(folder, "pools.npy"), "uint32", (4,))
        ...     write_entries(Path(folder, "pools.npy"), 1, np.array([7, 8], dtype=np.uint32))
        ...     np.load(Path(folder, "pools.npy"))
        array([0, 7, 8, 0], dtype=uint32)

    Args:
        path: a file that `create_array` made.
        first: index of the first entry, or row, to write.
        values: [n] or [n, 2], of the file's type.
    """
    if not len(values):
        return
    with path.open("r+b", buffering=0) as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        row_bytes = values.nbytes // len(values)
        at = file.tell() + first * row_bytes
        unwritten = np.ascontiguousarray(values, _dtype(values.dtype.name)).data.cast("B")
        while unwritten:
            written_bytes = os.pwrite(file.fileno(), unwritten, at)
            unwritten, at = unwritten[written_bytes:], at + written_bytes


@contextmanager
def growing_array(path: Path, dtype_name: str, num_columns: int | None) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Opens a new array file whose length is not known yet, and gives a function that appends rows to it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with growing_array(Path(folder, "members.npy"), "int64", 2) as append:
        ...         append(np.array([[7, 5], [8, 3]]))
        ...     np.load(Path(folder, "members.npy")).tolist()
        [[7, 5], [8, 3]]

    Args:
        path: the file, which must not exist.
        dtype_name: as in `create_array`, or "uint8".
        num_columns: number of columns; None for an array of one dimension.
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

    The file must begin with exactly the header that type and shape imply, so NumPy never parses a header that somebody
    else wrote.

    Raises:
        PreparedDatasetError: the file is missing, or is not such an array.
    """
    header = _header(dtype_name, shape)
    wanted_bytes = _num_bytes(header, dtype_name, shape)
    with open_file(path) as file:
        found_header = file.read(len(header))
        num_bytes = os.fstat(file.fileno()).st_size
        if found_header != header or num_bytes != wanted_bytes:
            raise PreparedDatasetError(
                f"{short_path(path)} was truncated or altered: it is no array of {dtype_name} {list(shape)}, as the "
                f"manifest states, in {wanted_bytes} bytes; it has {num_bytes} bytes"
            )
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    ask_for_huge_pages(mapped)
    return np.ndarray(shape, _dtype(dtype_name), mapped, offset=len(header))


def ask_for_huge_pages(mapped: mmap.mmap) -> None:
    """Asks the system to map a file in pages of 2 MiB, if the file is of a suitable size and the system can."""
    if hasattr(mmap, "MADV_HUGEPAGE") and HUGE_PAGE_BYTES <= len(mapped) <= memory_limit() // _TIMES_IN_MEMORY:
        with suppress(OSError):  # a system without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)


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
    """Extends a file to a size and claims the disk space; writes zeros if the file system cannot claim it otherwise."""
    written_bytes = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, num_bytes)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, num_bytes)
            return
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
    while written_bytes < num_bytes:
        written_bytes += os.pwrite(descriptor, _ZEROS[: num_bytes - written_bytes], written_bytes)
