"""Arrow files on a disk, memory-mapped, and Hugging Face datasets as a source.

Leaves opening them to `arrow_tables`, the layout of lists to `_list_columns`, looking ids up to `row_lookup`, copying
tokens to `packhorse.tokens.mapped`, and files in a store to `remote_arrow`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.mapped import MappedSource, Ranges
from packhorse.tokens.tables._list_columns import ListColumn
from packhorse.tokens.tables._token_columns import check_id_type, choose_column, token_dtype_of
from packhorse.tokens.tables.arrow_tables import arrow_table
from packhorse.tokens.tables.row_lookup import RowLookup
from packhorse.tokens.tables.table_source import TableSource, ids_of


class ArrowSource(TableSource, MappedSource):
    """Tokens of a list column of Arrow data, memory-mapped; ids are row numbers, or come from an id column.

    Rows are numbered over all files in order. Forks share the maps. A source of files pickles as their paths, and a
    source of a `datasets.Dataset` pickles as the dataset does.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"id": [70, 30], "input_ids": [[1, 2, 3], [4]]})
        >>> with pa.OSFile("tokens.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        ...     writer.write_table(table)
        >>> ArrowSource("tokens.arrow", id_column="id").read(30).tolist()
        [4]
    """

    def __init__(self, data: Any, *, column: str | None = None, id_column: str | None = None) -> None:
        """Opens the data; O(record batches).

        Args:
            data: an Arrow IPC file (of the file or the stream format), a folder of `*.arrow`, a glob pattern, a folder
                that `Dataset.save_to_disk` wrote, or a list of files in the order that numbers their rows; or a
                `datasets.Dataset`, also a selected or shuffled one.
            column: column of tokens, lists of integers. None for the only such column, or the only one of them named
                `input_ids` or `tokens`.
            id_column: column of ids, distinct integers. None if an id is a row number.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow is not installed.
            ValueError: a file is not an Arrow IPC file.
            TokenSourceError: a column is missing, ambiguous or of another type; a file is compressed.
        """
        self._table = arrow_table(data)
        schema = self._table.schema()
        self._column = choose_column(schema, column, self._table.where)
        self._id_column = id_column
        self._dtype = token_dtype_of(schema, self._column, self._table.where)
        if id_column is not None:
            check_id_type(schema, id_column, self._table.where)
        self._opened: _Opened | None = None
        self._lookup: RowLookup | None = None
        self._open()  # now, so that it raises the errors above

    def __len__(self) -> int:
        opened = self._open()
        return len(opened.tokens) if opened.selection is None else len(opened.selection)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": None}

    @property
    def where(self) -> str:
        """The files, or the dataset."""
        return self._table.where

    @property
    def mapped_files(self) -> Sequence[str]:
        """The mapped files; empty for a `datasets.Dataset`."""
        return self._table.paths

    def _has_column(self, name: str) -> bool:
        return name in self._table.schema().names

    def _check_id_column(self, name: str) -> None:
        check_id_type(self._table.schema(), name, self.where)

    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        tokens, selection = self._open()
        rows = self._rows(ids)
        buffers, starts, lengths = tokens.locate(rows if selection is None else selection[rows].astype(np.int64), ids)
        return Ranges(buffers, starts * self._dtype.itemsize, lengths)  # from tokens to bytes

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        tokens, selection = self._open()
        ids = ids_of(self._table.arrays(column), len(tokens), column, self.where)
        return ids if selection is None else ids[selection]

    def _open(self) -> "_Opened":
        """Returns the opened data, which is opened when it is first needed in a process."""
        if self._opened is None:
            arrays = self._table.arrays(self._column)
            column = ListColumn(arrays, dtype=self._dtype, where=self._table.where, column=self._column)
            self._opened = _Opened(column, self._table.selection())
        return self._opened


class _Opened(NamedTuple):
    """Arrow data that is open in this process."""

    tokens: ListColumn
    """The column of tokens, with all rows."""
    selection: NDArray[np.integer] | None
    """The selected rows, in order: integers [N]; None for all rows."""
