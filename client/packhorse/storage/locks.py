"""Locks between processes, on files and folders.

Owns taking a lock, waiting for it, and naming its holder. The system releases a lock when its holder ends, even if it
is killed.
"""

import fcntl
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.02
"""Time between two tries to get a lock."""
_MOST_NAME_BYTES = 200
"""Bytes that are read of a holder's name."""


class LockHeldError(BlockingIOError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}")
        self.holder = holder
        """Who holds the lock, such as `process 17 on node-3 since 2031-01-01 12:00:00`."""


@contextmanager
def hold_lock(path: Path, *, wait_seconds: float = math.inf) -> Iterator[None]:
    """Holds the lock of a file or a folder, as a context manager.

    The holder may remove the file, or its folder too, before it releases the lock; the next holder makes both again.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder, "lock")):
        ...     with hold_lock(Path(folder, "lock"), wait_seconds=0):
        ...         pass
        Traceback (most recent call last):
            ...
        packhorse.storage.locks.LockHeldError: ... is locked by process ... on ... since ...

    Args:
        path: path of a folder, or of a file that is only a lock; a missing file is made, with its folder.
        wait_seconds: how long to wait for another holder.

    Raises:
        LockHeldError: another process still holds the lock.
        OSError: the file cannot be made, or the file system has no locks.
    """
    descriptor = _locked(path, time.monotonic() + wait_seconds)
    try:
        if not path.is_dir():
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
        yield
    finally:
        os.close(descriptor)  # which releases the lock


def try_lock(file: int | IO[bytes] | IO[str], *, shared: bool = False) -> bool:
    """Locks an open file until it is closed; returns False if another process holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as file:
        ...     try_lock(file)
        True

    Args:
        file: the open file, or its descriptor.
        shared: whether the lock may be held by several at a time; it then only excludes holders of unshared locks.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locked(path: Path, deadline: float) -> int:
    """Opens and locks a file or a folder, waiting for another holder until `deadline`; returns the descriptor."""
    while True:
        descriptor = _opened(path)
        try:
            is_locked = try_lock(descriptor)
            if is_locked and _is_at(descriptor, path):
                return descriptor
            if not is_locked and time.monotonic() >= deadline:
                raise LockHeldError(path, _holder(descriptor, path))
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_locked:  # otherwise its last holder has removed the file: the path is opened again at once
            time.sleep(_POLL_SECONDS)


def _opened(path: Path) -> int:
    """Opens a folder, or a file, which is made with its folders if it is missing; returns the descriptor."""
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its last holder has just removed the folder
            continue


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether a path still leads to the open file, which may have been removed between opening and locking."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int, path: Path) -> str:
    """Returns what the holder wrote into the file; "another process" if there is nothing, as for folders."""
    written = b"" if path.is_dir() else os.read(descriptor, _MOST_NAME_BYTES)
    return written.decode(errors="replace") or "another process"
