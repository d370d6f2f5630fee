"""Reading TOML files that people write: their text, and which field on which line is wrong.

Owns what both kinds of files need. Leaves long lists to `_long_lists`, what fields mean to `mixture_file` and
`takedown_file`, and replacing a file to `packhorse.storage`.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from packhorse.storage import read_plain

_Value = TypeVar("_Value")


def text_of(path: Path, most_bytes: int, error: type[ValueError]) -> str:
    """Reads a file as text, if it is not too large.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> text_of(Path("note.txt"), 100, ValueError)
        'a text'

    Args:
        path: path of the file.
        most_bytes: the most bytes that the file may have.
        error: the type of the error to raise.

    Raises:
        ValueError: the file cannot be read, is too large, or is not text; the error's type is `error`.
    """
    try:
        data = read_plain(path, most_bytes + 1)
        if len(data) > most_bytes:
            raise error(f"{path.name} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")  # drops the byte order mark that some editors write, and TOML refuses
    except UnicodeDecodeError as caught:
        raise error(f"{path.name} is not text in UTF-8: {caught}") from None
    except OSError as caught:
        raise error(f"{path.name} cannot be read: {caught.strerror}") from caught


class FieldError(ValueError):
    """A field of a table is wrong.

    Example:
        >>> FieldError("ids", "must be a list of ids").field
        'ids'

    Args:
        field: the field's key.
        message: what is wrong, and the way out.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def checked_field(field: str, read: Callable[[], _Value]) -> _Value:
    """Calls `read` and returns its value. A ValueError becomes a FieldError of the field; a FieldError stays."""
    try:
        return read()
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def no_field(key: str, known: Sequence[str]) -> str:
    """Returns a message that a table has no such field, with a field of a similar name or the names of all.

    Example:
        >>> no_field("weight", ["weights", "by"])
        'is no field here; did you mean weights?'
    """
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"is no field here; {hint}"


def array_header(name: str) -> str:
    """Returns a regular expression for the header [[NAME]] of a table in a list, for `line_of`."""
    return rf"^[ \t]*\[\[[ \t]*{name}[ \t]*\]\]"


def table_header(name: str, inner: str) -> str:
    """Returns a regular expression for the header [NAME.INNER] of a table, for `line_of`."""
    return rf"^[ \t]*\[[ \t]*{name}[ \t]*\.[ \t]*[\"']?{re.escape(inner)}[\"']?[ \t]*\]"


def line_of(text: str, field: str, header: str = "", number: int = 0) -> int:
    r"""Returns the number of a field's line, from 1; if the field is missing, the line of its table's header, or 1.

    `header` is the regular expression of the table's header, empty for a field at the top of the file. `number` is the
    table's index among all tables with such a header.

    Example:
        >>> text = "[[skip]]\nepoch = 1\n[[skip]]\nepoch = 2"
        >>> line_of(text, "epoch", array_header("skip"), 1), line_of(text, "positions", array_header("skip"), 1)
        (4, 3)
    """
    headers = list(re.finditer(header, text, re.MULTILINE)) if header else []
    begin = headers[number].end() if number < len(headers) else 0
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, begin) if headers else None
    end = following.start() if following else len(text)
    # Finds NAME = …, NAME.INNER = …, [NAME], [[NAME]] and [NAME.INNER].
    key = re.compile(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(field)}[\"']?[ \t]*[=\].]", re.MULTILINE)
    found = key.search(text, begin, end)
    return text.count("\n", 0, found.start() if found else begin) + 1
