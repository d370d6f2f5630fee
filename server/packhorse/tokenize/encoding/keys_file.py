"""Keys of documents: a document that carries its key, and the file of keys beside the tokens.

Owns writing `X.keys.arrow`. What a key may be is in `packhorse.formats.keys`.
"""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, record_batches
from packhorse.formats.beside_tokens import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.storage import AtomicFiles


class KeyedText(str):
    """A document that comes with its key."""

    __slots__ = ("key",)
    key: str


class KeysFile:
    """Writes `X.keys.arrow`, the keys beside token files, whole or not at all; a context manager.

    Args:
        output: the prefix of the token files.
        num_tokens: number of tokens in all the token files, stored to check that keys and tokens belong together; None
            for the keys of a part.
        overwrite: whether an existing file is replaced.
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
        _, reader = open_arrow(path)
        for batch in record_batches(reader, path):
            self.append(batch.column(0))  # an Arrow array of texts, which Arrow takes as it is

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # else the file is discarded
            self._writer.close()
        self._files.__exit__(kind, error, trace)
