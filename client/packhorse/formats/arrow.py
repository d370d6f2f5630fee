"""Arrow IPC files: opening them, their batches, and their columns.

pyarrow is imported when a file is opened. Leaves which files a path names to `arrow_folders`, and streams to
`arrow_streams`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.extras import require
from packhorse.formats.object_store import TokenStoreError, without_secrets
from packhorse.storage import check_plain

_MOST_NAMES = 6

USUAL_COLUMNS = ("input_ids", "tokens")
"""Usual names of a column of tokens."""

_FILE_MAGIC = b"ARROW1"


def open_arrow(path: str | os.PathLike[str], *, columns: Sequence[int] | None = None) -> tuple[Any, Any]:
    """Maps an Arrow file of the file or the stream format.

    Args:
        path: the file.
        columns: numbers of the columns to decode; None for all.

    Returns:
        All bytes, as an Arrow buffer, and a reader of the record batches.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is no plain file.
        ValueError: it is not an Arrow IPC file.
    """
    import pyarrow as pa

    check_plain(path)
    try:
        # The map outlives the file: thousands of shards must not keep as many descriptors open.
        with pa.memory_map(os.fspath(path)) as file:
            whole = file.read_buffer()
        reader = _reader(pa.BufferReader(whole), whole[: len(_FILE_MAGIC)].to_pybytes(), columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{without_secrets(os.fspath(path))} cannot be read as an Arrow IPC file: {error}") from None
    return whole, reader


def read_arrow(file: Any, where: str, *, columns: Sequence[int] | None = None) -> Any:
    """Returns a reader of the record batches of an open file, such as a `RangeFile`; it reads what is needed.

    `where` is its path or URL, for messages.


    Raises:
        ValueError: it is not an Arrow IPC file.
    """
    import pyarrow as pa

    try:
        magic = file.read(len(_FILE_MAGIC))
        file.seek(0)
        return _reader(pa.PythonFile(file, mode="r"), magic, columns)
    except (FileNotFoundError, PermissionError, TokenStoreError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as an Arrow IPC file: {error}") from None


def _reader(source: Any, magic: bytes, columns: Sequence[int] | None) -> Any:
    from pyarrow import ipc

    open_reader = ipc.open_file if magic == _FILE_MAGIC else ipc.open_stream
    options = ipc.IpcReadOptions(use_threads=False, included_fields=None if columns is None else list(columns))
    return open_reader(source, options=options)


def record_batches(reader: Any, path: str | os.PathLike[str], first: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yields the record batches [first, end) of a reader; None for all from `first`.

    Raises:
        ValueError: the file is damaged.
    """
    import pyarrow as pa

    try:
        if hasattr(reader, "get_batch"):  # the file format's; the stream's is an iterator
            for number in range(first, reader.num_record_batches if end is None else end):
                yield reader.get_batch(number)
            return
        for number, batch in enumerate(reader):
            if end is not None and number >= end:
                return
            if number >= first:
                yield batch
    except (FileNotFoundError, PermissionError, TokenStoreError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{without_secrets(os.fspath(path))} cannot be read as an Arrow IPC file: {error}") from None


def evident_column(fitting: Sequence[str]) -> str | None:
    """Returns the only column of those that could hold tokens, or the only one with a usual name; else None.

    Example:
        >>> evident_column(["labels", "input_ids"]), evident_column(["a", "b"])
        ('input_ids', None)
    """
    for some in (fitting, [name for name in fitting if name in USUAL_COLUMNS]):
        if len(some) == 1:
            return some[0]
    return None


def column_type(schema: Any, column: str, where: str) -> Any:
    """Returns the Arrow type of a column; a ValueError if it is missing or there twice."""
    found = schema.get_all_field_indices(column)
    if not found:
        raise ValueError(f"{where} has no column {column!r}; its columns are: {listed(map(repr, schema.names))}")
    if len(found) > 1:
        raise ValueError(f"{where} has {len(found)} columns named {column!r}; rename all but one")
    return schema.field(found[0]).type


def is_token_list(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of integers, which lie end to end in memory."""
    types = require("pyarrow", "arrow").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or (types.is_fixed_size_list(kind) and kind.list_size)
    return bool(is_list and types.is_integer(kind.value_type))


def values_of(array: Any) -> Any:
    """Returns an Arrow array of numbers without nulls as a NumPy array, a view.

    Arrow's own `to_numpy` would import pandas, which takes longer than opening a source.
    """
    return np.from_dlpack(array)


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Returns which values of an Arrow array are null: bool [n]."""
    return np.asarray(values_of(array.is_null().cast("uint8")).astype(np.bool_))


def listed(names: Iterable[str]) -> str:
    """Returns names for a message: the first ones where there are many, and "none" without any.

    Example:
        >>> listed(["a", "b"]), listed(map(str, range(1000)))
        ('a, b', '0, 1, 2, 3, 4, 5 and 994 more')
    """
    shown = list(names)
    more = f" and {len(shown) - _MOST_NAMES:,} more" if len(shown) > _MOST_NAMES else ""
    return ", ".join(shown[:_MOST_NAMES]) + more if shown else "none"
