"""MDS shards (MosaicML Streaming) as a source: arrays, lists or raw bytes of tokens.

Owns which column holds the tokens. Leaves the layout of shards to `formats.mds`, and reading those of a store to
`_stored_shards`.
"""

import json
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.formats.mds import INTEGERS, MdsShards, array_type, read_array
from packhorse.formats.object_store import is_url
from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.fetched import FetchSource
from packhorse.tokens.integers import as_integers
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables._stored_shards import StoredShards
from packhorse.tokens.tables._token_columns import choose_by_name
from packhorse.tokens.tables.row_lookup import RowLookup
from packhorse.tokens.tables.table_source import TableSource


class MdsSource(TableSource, FetchSource):
    """Tokens of one column of MDS shards; ids are row numbers over all shards, or come from an id column.

    Columns are arrays (`ndarray`, with or without type and shape), lists (`json`), or raw numbers (`bytes`, with
    `dtype`). Forks share the maps; a pickled source carries the index only.

    Example:
        >>> MdsSource("mds", column="input_ids").read(1).tolist()
        [1000]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        dtype: DTypeLike | None = None,
        id_column: str | None = None,
        store: StoreCache | None = None,
    ) -> None:
        """Reads the index.

        Args:
            path: the folder of shards, or its `index.json`; or the URL of either in a store. Shards of a store are read
                ahead, through a cache on the node's disk.
            column: column of tokens. None for the only one that can hold them, or the only one of these named
                `input_ids` or `tokens`.
            dtype: type of the integers of a `bytes` column, little-endian by default; None for other columns.
            id_column: column of ids, a distinct integer for each sequence. None if an id is a row number. To read it
                from a store, all shards are read whole.
            store: how a URL is read; None for the defaults.

        Raises:
            FileNotFoundError: the index or a shard is missing.
            TokenStoreError: the store does not answer.
            ValueError: the index is not valid, or a shard is there only in compressed form.
            TokenSourceError: a column is missing, ambiguous or of another type.
        """
        super().__init__()
        self._shards = MdsShards(path)
        self._stored = StoredShards(self._shards, store or StoreCache()) if is_url(path) else None
        columns = self._shards.columns
        for name in (column, id_column):
            if name is not None and name not in columns:
                raise TokenSourceError(f"{self._shards.where}: no column {name!r}; its columns are: {_listed(columns)}")
        self._dtype = None if dtype is None else np.dtype(dtype)
        if self._dtype is not None and self._dtype.kind not in "iu":
            raise TokenSourceError(f"dtype is {self._dtype}, but tokens are integers")
        if column is None:
            fitting = [name for name in columns if self._reason_against(name) is None]
            column = choose_by_name(columns, fitting, self._shards.where)
        reason = self._reason_against(column)
        if reason is not None:
            raise TokenSourceError(f"{self._shards.where}: column {column!r} {reason}")
        if id_column is not None:
            self._check_id_column(id_column)
        self._column, self._encoding = column, columns[column]
        self._id_column = id_column
        self._lookup: RowLookup | None = None

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def where(self) -> str:
        """The folder of the shards."""
        return self._shards.where

    def _has_column(self, name: str) -> bool:
        return name in self._shards.columns

    def _check_id_column(self, name: str) -> None:
        encoding = self._shards.columns[name]
        if encoding not in INTEGERS:
            raise TokenSourceError(f"{self.where}: column {name!r} is encoded as {encoding!r}, but ids are integers")

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        return self._shards.integers(column)

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        rows = self._rows(ids)
        cells = self._stored or self._shards
        return [
            as_integers(sequence_id, self._decode(sequence_id, cells.cell(row, self._column)))
            for sequence_id, row in zip(ids.tolist(), rows.tolist(), strict=True)
        ]

    def _expect(self, ids: NDArray[np.int64]) -> None:
        if self._stored is not None:
            self._stored.expect(self._rows(ids))

    def _decode(self, sequence_id: int, cell: memoryview) -> Any:
        """Returns the tokens of a cell, a list or an array; a TokenSourceError if the cell is damaged."""
        try:
            if self._encoding == "json":
                return json.loads(bytes(cell))
            if self._encoding == "bytes":
                return np.frombuffer(cell, self._dtype)
            return read_array(cell, self._encoding)
        except ValueError as error:
            raise TokenSourceError(f"sequence {sequence_id}, column {self._column!r}: {error}") from None

    def _reason_against(self, column: str) -> str | None:
        """Returns why a column cannot hold tokens; None if it can."""
        encoding = self._shards.columns[column]
        if encoding == "bytes":
            return None if self._dtype else "holds bytes; give the type of its integers, as in dtype='uint16'"
        if self._dtype is not None:
            return f"is encoded as {encoding!r}; leave dtype out"
        if encoding == "json":
            return None
        if encoding == "pkl":
            return "is pickled, and unpickling runs whatever code the file holds; write it as ndarray"
        found = array_type(encoding)
        if found is None:
            return f"is encoded as {encoding!r}, but tokens are arrays, lists or bytes"
        if found.dtype is not None and found.dtype.kind not in "iu":
            return f"holds {found.dtype}, but tokens are integers"
        if found.shape is not None and len(found.shape) != 1:
            return f"holds arrays of shape {list(found.shape)}, but tokens are a list"
        return None


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name!r} ({encoding})" for name, encoding in columns.items())
