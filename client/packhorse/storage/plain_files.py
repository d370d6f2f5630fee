"""Reading files that users name without waiting for ever, even if the name is a pipe, or its file system hangs.

Owns that only plain files are opened. Leaves giving up if a file system does not answer to `in_time`, what a file says
to its reader, and noticing that it changed to `watched`.
"""

import errno
import io
import os
import stat

from packhorse.storage.in_time import look_at

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a plain file for reading, and refuses anything else: opening a pipe would wait for a writer.

    Example:
        >>> os.mkfifo("pipe")
        >>> open_plain("pipe")
        Traceback (most recent call last):
            ...
        OSError: [Errno 22] it is a pipe, and must be a plain file: 'pipe'

    Raises:
        OSError: it cannot be opened, or is something else; `strerror` says which.
    """
    check_plain(path)
    # O_NONBLOCK and a second check, because the file may have become a pipe since the first one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_plain(path: str | os.PathLike[str]) -> None:
    """Refuses anything but a plain file, before a library opens the file by itself.

    Example:
        >>> check_plain(".")
        Traceback (most recent call last):
            ...
        IsADirectoryError: [Errno 21] Is a directory: '.'

    Raises:
        OSError: it is something else, or missing; `strerror` says which.
    """
    _check_kind(os.stat(path), path)


def read_plain(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """Returns the content of a small plain file; in a server within ANSWER_SECONDS, see `look_at`.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> read_plain("note.txt"), read_plain("note.txt", 2)
        (b'a text', b'a ')

    Args:
        path: path of the file.
        most_bytes: how many bytes are read at most; -1 for all.

    Raises:
        OSError: see `open_plain`; or the file system does not answer.
    """

    def read() -> bytes:
        with open_plain(path) as file:
            return file.read(most_bytes)

    return look_at(os.fspath(path), read)


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a small plain file; see `read_plain`.

    Raises:
        OSError: see `read_plain`.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    return read_plain(path).decode()


def _check_kind(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raises an OSError, with the path, unless `status` is a plain file's."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and must be a plain file", os.fspath(path))
