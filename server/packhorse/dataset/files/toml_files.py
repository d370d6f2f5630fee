"""Reading TOML files that people write: their text, and which field on which line is wrong.

Leaves long lists to `_long_lists`, what fields mean to `mixture_file` and `takedown_file`, and replacing a file to
`packhorse.storage`.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from packhorse.storage import read_plain

_Value = TypeVar("_Value")


def text_of(path: Path, most_bytes: int, error: type[ValueError]) -> str:
    """Reads a file, up to a size.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> text_of(Path("note.txt"), 100, ValueError)
        'a text'

    Args:
        path: of the file.
        most_bytes: a larger file is refused.
        error: the type to raise.

    Raises:
        ValueError: of type `error`: the file cannot be read, is too large, or is not text.
    """
    try:
        data = read_plain(path, most_bytes + 1)
        if len(data) > most_bytes:
            raise error(f"{path.name} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")  # some editors mark a text by a first character that TOML refuses
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
        field: the key of the field.
        message: says what is wrong, and the way out.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def checked_field(field: str, read: Callable[[], _Value]) -> _Value:
    """Returns the value that `read` returns; turns its ValueError into a FieldError."""
    try:
        return read()
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def no_field(key: str, known: Sequence[str]) -> str:
    """Says that a table has no field of this name, and which may be meant.

    Example:
        >>> no_field("weight", ["weights", "by"])
        'is no field here; did you mean weights?'
    """
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"is no field here; {hint}"


def array_header(name: str) -> str:
    """Returns the pattern of a header [[NAME]]."""
    return rf"^[ \t]*\[\[[ \t]*{name}[ \t]*\]\]"


def table_header(name: str, inner: str) -> str:
    """Returns the pattern of a header [NAME.INNER]."""
    return rf"^[ \t]*\[[ \t]*{name}[ \t]*\.[ \t]*[\"']?{re.escape(inner)}[\"']?[ \t]*\]"


def line_of(text: str, field: str, header: str = "", number: int = 0) -> int:
    r"""Returns the line of a field, from 1; that of its table's header where the table lacks it.

    `header` is the pattern of that header, empty for a field at the top; `number` says which of several tables.

    Example:
        >>> text = "[[skip]]\nepoch = 1\n[[skip]]\nepoch = 2"
        >>> line_of(text, "epoch", array_header("skip"), 1), line_of(text, "positions", array_header("skip"), 1)
        (4, 3)
    """
    headers = list(re.finditer(header, text, re.MULTILINE)) if header else []
    begin = headers[number].end() if number < len(headers) else 0
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, begin) if headers else None
    end = following.start() if following else len(text)
    key = re.compile(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(field)}[\"']?[ \t]*[=\].]", re.MULTILINE)
    found = key.search(text, begin, end)
    return text.count("\n", 0, found.start() if found else begin) + 1
