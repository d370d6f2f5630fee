"""Reading a prepared folder's files safely, whatever was put there: only plain files, so that nothing waits for a fifo.

Owns which errors of the system are turned into a `PreparedDatasetError`. The names of files are in `layout`; opening
plain files in general is in `packhorse.storage.plain_files`.
"""

import errno
import hashlib
import io
import os
from pathlib import Path

from packhorse.dataset.errors import PreparedDatasetError, short_path
from packhorse.dataset.layout import MANIFEST, datasets_below
from packhorse.storage import open_plain

_NO_PLAIN_FILE = (errno.EINVAL, errno.EISDIR)
"""Errors by which `storage.open_plain` refuses a pipe, a device or a folder."""

_ABOUT_THE_FILE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENODEV)
"""Other errors that are this file's fault. The rest, such as too many open files, goes to the caller as it is."""


def open_file(path: Path) -> io.BufferedReader:
    """Opens a plain file for reading.

    Raises:
        PreparedDatasetError: it is missing, cannot be read, or is something else, such as a folder or a fifo.
    """
    try:
        return open_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        below = datasets_below(path.parent) if path.name == MANIFEST else []
        if below:
            raise PreparedDatasetError(
                f"{path.parent.name} holds datasets, but is not one: name one, such as {short_path(below[0])}"
            ) from None
        raise PreparedDatasetError(f"{short_path(path)} is missing; prepare the dataset again") from None
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            raise PreparedDatasetError(f"{short_path(path)} is not a plain file; prepare the dataset again") from None
        if error.errno not in _ABOUT_THE_FILE:
            raise
        raise PreparedDatasetError(f"{short_path(path)} cannot be read: {error.strerror}") from None


def read_file(path: Path, most_bytes: int) -> bytes:
    """Reads a plain file whole; one of more than `most_bytes` is refused unread.

    Raises:
        PreparedDatasetError: see `open_file`; or it is too large.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise PreparedDatasetError(
                f"{short_path(path)} was altered: it has {size_bytes:,} bytes, and what belongs there has at most "
                f"{most_bytes:,}"
            )
        return file.read(most_bytes)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a plain file's bytes, in hexadecimal.

    Raises:
        PreparedDatasetError: see `open_file`.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
