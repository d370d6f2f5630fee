"""Keys of documents, kept beside the token files: `X.keys.arrow`.

Owns what may be the key of a row, and writing the file; leaves its name and column to `packhorse.formats.keys`, and the
table that `prepare` makes of it to `packhorse.dataset`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, record_batches
from packhorse.formats.keys import KEY_COLUMN, NUM_TOKENS, check_key, keys_path
from packhorse.storage import AtomicFiles


class KeyedText(str):
    """A document that comes with its key."""

    __slots__ = ("key",)
    key: str


def keyed(text: str, value: object, column: str, origin: object) -> KeyedText:
    """Returns a document with its key.

    Args:
        text: the document.
        value: of its row in the column of keys: text, or a whole number.
        column: its name.
        origin: file and row, for messages.

    Raises:
        ValueError: the value is no key.
    """
    kept = KeyedText(text)
    if value is None or isinstance(value, bool) or not isinstance(value, str | int):
        what = "null" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{origin}: {column!r} is {what}; a key is text, or a whole number: repair the row")
    kept.key = str(value)
    try:
        check_key(kept.key)
    except ValueError as error:
        raise ValueError(f"{origin}: {column!r}: {error}") from None
    return kept


class KeysFile:
    """Writes the keys of token files, whole or not at all; a context manager.

    Args:
        output: the prefix of the token files.
        num_tokens: all their tokens, which tell that keys and tokens belong together; None where nobody asks.
        overwrite: whether a file that is there is replaced.
    """

    def __init__(self, output: str | os.PathLike[str], *, num_tokens: int | None = None, overwrite: bool) -> None:
        arrow = require("pyarrow")
        self._files = AtomicFiles([keys_path(output)], overwrite=overwrite)
        facts = None if num_tokens is None else {NUM_TOKENS: str(num_tokens)}
        self._schema = arrow.schema([(KEY_COLUMN, arrow.large_string())], metadata=facts)
        self._writer = require("pyarrow.ipc").new_file(self._files.files[0], self._schema)

    def append(self, keys: Sequence[str]) -> None:
        """Adds the keys of the next sequences."""
        arrow = require("pyarrow")
        self._writer.write_batch(arrow.record_batch([arrow.array(keys, arrow.large_string())], schema=self._schema))

    def extend(self, output: str | os.PathLike[str]) -> None:
        """Adds the keys of other token files."""
        path = str(keys_path(output))
        for batch in record_batches(open_arrow(path)[1], path):
            self.append(batch.column(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer.close()
        self._files.__exit__(kind, error, trace)


def remove_keys(output: str | os.PathLike[str]) -> None:
    """Removes keys of token files that were replaced by others without."""
    Path(keys_path(output)).unlink(missing_ok=True)


def keys_of(documents: Sequence[Any]) -> list[str]:
    """Returns the keys of documents that all have one."""
    return [document.key for document in documents]
