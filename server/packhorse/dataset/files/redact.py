"""Adding a redaction to a takedown's file.

Owns the order of reading, checking and replacing; leaves the text to `takedown_file`.
"""

from collections.abc import Callable
from pathlib import Path

from packhorse.dataset.files.takedown_file import (
    MOST_TAKEDOWN_BYTES,
    ReadIds,
    Redaction,
    TakedownError,
    TakedownFile,
    append_redaction,
)
from packhorse.dataset.files.toml_files import text_of
from packhorse.storage import hold_lock, replace_bytes


def redact(path: Path, redaction: Redaction, check: Callable[[TakedownFile], object]) -> TakedownFile:
    r"""Adds a redaction to a takedown's file, which is replaced as a whole: a server reads the old text or the new one.

    Example:
        >>> import numpy as np
        >>> path = Path("some.takedown.toml")
        >>> redact(path, Redaction(ids=np.array([4])), lambda file: None).redactions[0].ids.tolist()
        [4]

    Args:
        path: of the file; made where there is none.
        redaction: the new one.
        check: raises where the dataset cannot do what the file then says.

    Returns:
        What the file says now.

    Raises:
        TakedownError: the file or the redaction is not as it must be; the file stays as it was.
        OSError: it cannot be written.
    """
    with hold_lock(path.parent):
        text = takedown_text(path) if path.exists() else ""
        read_ids = read_ids_of(path)
        edited = append_redaction(text, path.name, redaction, read_ids)
        if len(edited.encode()) > MOST_TAKEDOWN_BYTES:
            raise TakedownError(f"{path.name} would have more than {MOST_TAKEDOWN_BYTES:,} bytes; use ids_file there")
        after = TakedownFile.parse(edited, path.name, read_ids)
        check(after)
        replace_bytes(path, edited.encode())
    return after


def read_ids_of(path: Path, refuse: Callable[[Path], None] = lambda _: None) -> ReadIds:
    """Returns what reads the files of ids that a takedown's file names: they lie beside it.

    Example:
        >>> size = Path("gone.txt").write_text("3 4")
        >>> read_ids_of(Path("web.takedown.toml"))("gone.txt")
        '3 4'

    Args:
        path: of the takedown's file.
        refuse: raises where a file may not be read.
    """

    def read(name: str) -> str:
        if not name or Path(name).name != name or name.startswith("."):
            raise TakedownError(f"{name!r} is no name of a file beside {path.name}; put it there, and name it alone")
        ids_file = path.with_name(name)
        refuse(ids_file)
        return takedown_text(ids_file)

    return read


def takedown_text(path: Path) -> str:
    """Reads a takedown's file, or a file of ids.

    Example:
        >>> size = Path("gone.txt").write_text("3 4")
        >>> takedown_text(Path("gone.txt"))
        '3 4'

    Raises:
        TakedownError: it cannot be read, is too large, or is no text.
    """
    return text_of(path, MOST_TAKEDOWN_BYTES, TakedownError)
