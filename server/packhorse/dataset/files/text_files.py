"""Small text files that servers read while people and commands change them.

Owns reading one, replacing it as a whole, and keeping commands that change files of one folder from each other.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def text_of(path: Path, most_bytes: int, error: type[ValueError]) -> str:
    """Reads a file, up to a size.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> text_of(Path("note.txt"), 100, ValueError)
        'a text'

    Args:
        path: of the file.
        most_bytes: a larger file is refused.
        error: what is raised.

    Raises:
        ValueError: as `error`: the file cannot be read, is too large, or is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise error(f"{path.name} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")  # some editors mark a text by a first character that TOML refuses
    except UnicodeDecodeError as caught:
        raise error(f"{path.name} is no text in UTF-8: {caught}") from None
    except OSError as caught:
        raise error(f"{path.name} cannot be read: {caught.strerror}") from None


def replace_text(path: Path, text: str) -> None:
    """Replaces a file with a text at once; the file's permissions stay, where there is one.

    Callers hold `locked_folder`: what one of them writes, and leaves where it is killed, has the same name each time.

    Example:
        >>> with locked_folder(Path.cwd()):
        ...     replace_text(Path("note.txt"), "the new text")
        >>> Path("note.txt").read_text()
        'the new text'

    Raises:
        OSError: it cannot be written; the file stays as it was.
    """
    temporary = path.with_name(f".{path.name}.partial")
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
    """Keeps others who change files there waiting.

    Example:
        >>> with locked_folder(Path.cwd()):
        ...     replace_text(Path("note.txt"), "nobody else's")
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
