"""Adding a redaction to a takedown's file.

Owns editing the file's text, and the order of locking, reading, checking and replacing. Leaves the file's fields to
`takedown_file`, and editing mixtures to `appending`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from packhorse.dataset.files.takedown_file import (
    MOST_TAKEDOWN_BYTES,
    ReadIds,
    Redaction,
    TakedownError,
    TakedownFile,
    read_ids_of,
    takedown_text,
)
from packhorse.storage import hold_lock, replace_bytes


def redact(path: Path, redaction: Redaction, check: Callable[[TakedownFile], object]) -> TakedownFile:
    r"""Adds a redaction to a takedown's file, which is replaced in one step: servers read the old text or the new one.

    Example:
        >>> import numpy as np
        >>> path = Path("some.takedown.toml")
        >>> redact(path, Redaction(ids=np.array([4])), lambda file: None).redactions[0].ids.tolist()
        [4]

    Args:
        path: path of the file, which is created if it is missing.
        redaction: the redaction to add.
        check: a function that is called with the file's new content, and raises an error if the dataset cannot do it.

    Returns:
        The file's new content.

    Raises:
        TakedownError: the file or the redaction is wrong; the file stays as it was.
        OSError: it cannot be written.
    """
    with hold_lock(path.parent):  # of the folder, because the file may not exist, and is replaced
        text = takedown_text(path) if path.exists() else ""
        read_ids = read_ids_of(path)
        edited = _with_redaction(text, path.name, redaction, read_ids)
        if len(edited.encode()) > MOST_TAKEDOWN_BYTES:
            raise TakedownError(f"{path.name} would have more than {MOST_TAKEDOWN_BYTES:,} bytes; use ids_file there")
        after = TakedownFile.parse(edited, path.name, read_ids)
        check(after)
        replace_bytes(path, edited.encode())
    return after


def _with_redaction(text: str, file: str, redaction: Redaction, read_ids: ReadIds | None) -> str:
    """Returns a file's text with one more redaction at its end; the rest of the text stays as it is.

    Raises:
        TakedownError: the file is wrong, or has redactions in another form, to which no table can be added.
    """
    before = TakedownFile.parse(text, file, read_ids)
    edited = f"{text.rstrip()}\n\n{_redaction_toml(redaction)}".lstrip()
    wanted = replace(before, redactions=(*before.redactions, redaction))
    try:
        is_right = TakedownFile.parse(edited, file, read_ids).is_same(wanted)
    except TakedownError:
        is_right = False
    if not is_right:
        raise TakedownError(f"{file}: redactions must be [[redact]] tables for one to be added; write them like that")
    return edited


def _redaction_toml(redaction: Redaction) -> str:
    """Returns the TOML of a redaction."""
    lines = ["[[redact]]"]
    if redaction.component:
        lines.append(f"component = {_toml_string(redaction.component)}")
    lines.append(f"ids = [{', '.join([*map(str, redaction.ids.tolist()), *map(_toml_string, redaction.keys)])}]")
    if redaction.token is not None:
        lines += ['action = "replace"', f"token = {redaction.token}"]
    if redaction.seed is not None:
        lines += [f"seed = {redaction.seed}", f"from_position = {redaction.from_position}"]
    if redaction.reason:
        lines.append(f"reason = {_toml_string(redaction.reason)}")
    return "\n".join(lines) + "\n"


def _toml_string(text: str) -> str:
    """Returns text as a TOML string: as in JSON, which escapes all that TOML wants escaped except DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
