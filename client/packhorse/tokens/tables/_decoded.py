"""Decoded row groups on the node's disk: one process of the node decodes each, and all processes map it.

Owns the layout of a decoded column in a block. Leaves blocks, their checksums and their limit to
`tokens.stored.node_cache`.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables._list_columns import ListColumn, Located, refuse_null

_OPEN_BYTES = 1 << 20
"""What a mapped column counts for in a process's cache of columns: it takes no memory, but an open file, of which a
process may have 1,024."""
_HEAD_BYTES = 16
"""Bytes before the offsets: the number of rows, and the type of the tokens."""


class FlatColumn:
    """A decoded row group, mapped. Legend: R rows.

    Its bytes are: R, int64; NumPy's name of the tokens' type, in 8 bytes; where rows begin and the last ends, in
    tokens, int64 [R + 1]; which rows are null, bool [R]; all tokens.
    """

    nbytes = _OPEN_BYTES
    """Size for the cache that holds it; see `_OPEN_BYTES`."""

    def __init__(self, block: memoryview, *, where: str, column: str) -> None:
        """Takes a block's bytes; `where` and `column` name the data in messages."""
        self._num_rows = int.from_bytes(block[:8], "little")
        self.dtype = np.dtype(bytes(block[8:16]).rstrip().decode())
        nulls_at = _HEAD_BYTES + 8 * (self._num_rows + 1)
        tokens_at = nulls_at + self._num_rows
        self._offsets: NDArray[np.int64] = np.frombuffer(block[_HEAD_BYTES:nulls_at], "<i8")
        self._is_null: NDArray[np.bool_] = np.frombuffer(block[nulls_at:tokens_at], np.bool_)
        self._tokens = block[tokens_at:]
        self._where = where
        self._column = column

    @staticmethod
    def block_of(column: ListColumn) -> bytes:
        """Returns the bytes of a decoded column."""
        offsets, is_null, tokens = column.end_to_end()
        head = len(column).to_bytes(8, "little") + tokens.dtype.str.ljust(8).encode()
        return b"".join((head, offsets.astype("<i8").tobytes(), is_null.tobytes(), tokens.tobytes()))

    def __len__(self) -> int:
        return self._num_rows

    def locate(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> Located:
        """Finds sequences; see `ListColumn.locate`."""
        is_null = self._is_null[rows]
        if is_null.any():
            refuse_null(ids[is_null.argmax()], self._column, self._where)
        starts = self._offsets[rows]
        return Located([self._tokens] * len(rows), starts, self._offsets[rows + 1] - starts)


class DecodedCache:
    """Decoded columns of files; each row group is a block of the node's cache. It pickles by its folder."""

    def __init__(self, store: StoreCache) -> None:
        """Makes the cache's folder; an OSError if it cannot be made."""
        self._cache = store.open()
        self._patience_seconds = store.options.attempt_seconds

    def column(self, version: str, where: str, column: str, group: int, decode: Callable[[], ListColumn]) -> FlatColumn:
        """Returns a column of a row group, which is decoded now unless a process of the node has already done so.

        Args:
            version: identifies the file in its present state; every file and every change has another one.
            where: the file, for messages.
            column: name of the column.
            group: number of the row group in the file.
            decode: decodes the column of the row group.
        """
        key = hashlib.sha256(f"decoded\n{version}\n{column}".encode()).hexdigest()[:32]
        block = self._cache.block(
            key, group, lambda: FlatColumn.block_of(decode()), patience_seconds=self._patience_seconds
        )
        return FlatColumn(block, where=where, column=column)
