"""Rows of Arrow data, which Parquet files, Arrow files and Arrow streams give alike."""

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import nulls_of, values_of
from packhorse.prepare.input._rows import InputColumns, RawRows


def with_integers(rows: RawRows, table: Any, columns: InputColumns) -> RawRows:
    """Returns rows with the ids and groups of an Arrow table or record batch of them."""
    found = [(None, None) if name is None else _values_and_nulls(_joined(table, name)) for name in columns.integers]
    (ids, null_ids), (groups, null_groups) = found
    return rows._replace(ids=ids, null_ids=null_ids, groups=groups, null_groups=null_groups)


def arrow_lengths(lengths: Any, is_list: bool) -> RawRows:
    """Returns an Arrow array of lengths, or of lists, whose lengths are taken from their offsets.

    Args:
        lengths: integers, or lists.
        is_list: which of them.
    """
    if is_list:
        import pyarrow.compute as pc

        lengths = pc.list_value_length(lengths)
    return RawRows(*_values_and_nulls(lengths))


def arrow_rows(batch: Any, columns: InputColumns, is_list: bool) -> RawRows:
    """Returns the rows of an Arrow record batch.

    Args:
        batch: has the columns, by name.
        columns: which they are.
        is_list: whether the length column holds lists.
    """
    lengths = arrow_lengths(batch.column(batch.schema.get_field_index(columns.length)), is_list)
    return with_integers(lengths, batch, columns)


def _joined(table: Any, name: str) -> Any:
    """Returns a column of an Arrow table or record batch as one array."""
    column = table.column(table.schema.get_field_index(name))
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _values_and_nulls(array: Any) -> tuple[NDArray[np.integer], NDArray[np.bool_] | None]:
    return (values_of(array.fill_null(1)), nulls_of(array)) if array.null_count else (values_of(array), None)


PARSING = Lock()
"""Held while a header is read."""


def map_array(path: str | Path, *, writable: bool = False) -> NDArray[Any]:
    """Maps an array file; many threads may do so at once.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder, "lengths.npy"), [5, 3])
        ...     map_array(Path(folder, "lengths.npy")).tolist()
        [5, 3]

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no array, or holds Python objects.
    """
    with PARSING:
        array: NDArray[Any] = np.load(path, mmap_mode="r+" if writable else "r", allow_pickle=False)
    return array
