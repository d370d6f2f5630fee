"""The lock of whoever writes a prepared folder, in a hidden work folder beside it.

Owns who holds it, and that it is let go of however its holder ends. Leaves what else is in the work folder to
`prepare`.
"""

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packhorse.jobs import held_signals

LOCK = "lock"
"""The file of the work folder that is locked, and says by whom."""


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Holds the lock of a folder to be written, and gives the work folder beside it, for which nothing else is there.

    The system lets go of the lock when the process ends, however it ends. A work folder that is empty afterwards is
    removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with locked(Path(folder, "set")) as work:
        ...         work.name, [path.name for path in work.iterdir()]
        ...     work.exists()
        ('.set.work', ['lock'])
        False

    Args:
        output: the folder to be; symbolic links are followed.

    Raises:
        BlockingIOError: another process holds it; the message says which, where, and since when.
        OSError: of the work, such as a full disk; it names the output.
    """
    work = output.resolve()
    work = work.with_name(f".{work.name}.work")
    descriptor = _lock(work, output)
    try:
        yield work
    except OSError as error:  # of a disk that is full, say: users know the output, and not the folder beside it
        if error.strerror and (error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(work)):
            error.filename = str(output)
        raise
    finally:
        with held_signals():
            if os.listdir(work) == [LOCK]:
                shutil.rmtree(work)
            os.close(descriptor)


def _lock(work: Path, output: Path) -> int:
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(work / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its last holder has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise BlockingIOError(
                f"{output} is being prepared already, by {holder}; wait until it is done, or give another output"
            ) from None
        if _is_at(descriptor, work / LOCK):
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file, or it was removed between opening and locking."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
