"""Reading the files of a folder that anything may have been put into.

Owns that only plain files are opened, that nothing waits for a fifo, how messages name a file, and the message for a
folder that is none; leaves what the bytes mean to `manifest`, `layout` and `arrays`.
"""

import errno
import hashlib
import io
import os
import stat
from pathlib import Path

from packhorse.dataset.exchange import aside_of
from packhorse.dataset.files.mixture_file import MIXTURE_SUFFIX
from packhorse.dataset.layout import MANIFEST, PreparedDatasetError, datasets_below

_ABOUT_THE_FILE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def named(path: Path) -> str:
    """Returns how messages name a file: with its folder's name, without the folder's path."""
    return f"{path.parent.name}/{path.name}"


def check_folder(folder: Path) -> None:
    """Refuses what cannot be a prepared folder, because it is none; says so of a mixture's file.

    Raises:
        PreparedDatasetError: it is something else, or nothing.
    """
    if folder.is_dir():
        return
    name = folder.name.removesuffix(MIXTURE_SUFFIX)
    if folder.with_name(f"{name}{MIXTURE_SUFFIX}").is_file():
        raise PreparedDatasetError(
            f"{name} is a mixture, a file that names prepared folders: give the folder of one component; `packhorse "
            f"mixture show {name} --target embedded:{folder.parent}` shows all of them"
        )
    if (aside := aside_of(folder.resolve())).is_dir():
        raise PreparedDatasetError(
            f"{folder.name} was being replaced when the machine went down, and lies beside it: "
            f"`mv {aside.name} {folder.resolve().name}` there gives it its name back, and so does the next `packhorse "
            "prepare` that writes it"
        )
    raise PreparedDatasetError(f"{folder} is not a folder; `packhorse prepare` writes one")


def open_file(path: Path) -> io.BufferedReader:
    """Opens a plain file for reading.

    Raises:
        PreparedDatasetError: it is missing, cannot be read, or is something else, such as a folder or a fifo.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a fifo would wait otherwise
    except (FileNotFoundError, NotADirectoryError):
        below = datasets_below(path.parent) if path.name == MANIFEST else []
        if below:
            raise PreparedDatasetError(
                f"{path.parent.name} holds datasets and is none itself: name one, such as {named(below[0])}"
            ) from None
        raise PreparedDatasetError(f"{named(path)} is missing; prepare the dataset again") from None
    except OSError as error:
        if error.errno not in _ABOUT_THE_FILE:
            raise
        raise PreparedDatasetError(f"{named(path)} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PreparedDatasetError(f"{named(path)} is not a plain file; prepare the dataset again")
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, most_bytes: int) -> bytes:
    """Reads a plain file whole.

    Args:
        path: the file.
        most_bytes: what it can have; a larger one is refused unread.

    Raises:
        PreparedDatasetError: see `open_file`; or it is too large.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise PreparedDatasetError(
                f"{named(path)} was altered: it has {size_bytes:,} bytes, and what belongs there has at most "
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
