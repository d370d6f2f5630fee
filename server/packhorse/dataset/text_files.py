"""Small text files that servers read while people and commands change them.

Owns replacing one as a whole, and keeping commands that change files of one folder from each other.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Puts a text into a file's place at once; the file's permissions stay, where there is one.

    Example:
        >>> replace_text(Path("note.txt"), "the new text")
        >>> Path("note.txt").read_text()
        'the new text'

    Raises:
        OSError: it cannot be written; the file stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keeps others who change files there waiting."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
