"""Arrow IPC files, folders of them that Hugging Face `datasets` saves, and columns of Arrow data.

Owns which files a path names, in the order that numbers their rows, opening them, and which column holds tokens: one
rule for preparing and for training. pyarrow is imported when a file is opened.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.extras import require
from packhorse.formats.files import find_files, is_file, open_binary
from packhorse.formats.object_store import TokenStoreError, find_objects, without_secrets

SUFFIXES = (".arrow", ".ipc", ".feather")
SAVED_STATE = "state.json"
"""In a folder of `Dataset.save_to_disk`, beside its Arrow files."""
SAVED_SPLITS = "dataset_dict.json"
"""In a folder of `DatasetDict.save_to_disk`, beside a folder for each split."""

_MOST_NAMES = 6

USUAL_COLUMNS = ("input_ids", "tokens")
"""Usual names of a column of tokens."""

_FILE_MAGIC = b"ARROW1"
_FRAME_BYTES = 1 << 12
"""How much of a message is read to find its size; most metadata fit."""
_RECORD_BATCH = 3
"""The type of a message that is a record batch."""


def arrow_files(source: str | os.PathLike[str]) -> list[Path]:
    """Finds the Arrow files that one path names, in the order that numbers their rows.

    Args:
        source: an Arrow file, a folder of `*.arrow` at any depth, a glob pattern, or a folder that
            `Dataset.save_to_disk` wrote.

    Returns:
        At least one path.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a saved dataset has no files, or rows selected as only an old `datasets` does.
    """
    folder = Path(source)
    if not (folder / SAVED_STATE).is_file():
        return find_files(source, ".arrow")
    try:
        state = (folder / SAVED_STATE).read_text(encoding="utf-8")
    except ValueError as error:
        raise ValueError(f"{folder / SAVED_STATE} is not what `datasets` writes: {error!r}") from None
    return [folder / name for name in _saved_names(state, str(folder))]


def arrow_objects(url: str) -> list[str]:
    """Finds the Arrow files that one URL names, as `arrow_files` finds those of a path."""
    state_url = f"{url.rstrip('/')}/{SAVED_STATE}"
    if without_secrets(url).endswith(SUFFIXES) or not is_file(state_url):
        return find_objects(url, ".arrow")
    with open_binary(state_url) as file:
        names = _saved_names(file.read().decode(), without_secrets(url))
    return [f"{url.rstrip('/')}/{name}" for name in names]


def saved_splits(folder: Path) -> list[str]:
    """Returns the splits of a folder that `DatasetDict.save_to_disk` wrote, sorted; [] for other folders."""
    if not (folder / SAVED_SPLITS).is_file():
        return []
    return sorted(state.parent.name for state in folder.glob(f"*/{SAVED_STATE}"))


def _saved_names(text: str, folder: str) -> list[str]:
    """Returns the Arrow files that a saved dataset's state names."""
    path = f"{folder}/{SAVED_STATE}"
    try:
        state = json.loads(text)
        is_selected = bool(state.get("_indices_data_files") or state.get("_indices_files"))
        names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `datasets` writes: {error!r}") from None
    if is_selected:
        raise ValueError(f"{folder} was saved with rows selected by an old `datasets`; save it with a newer one")
    if not names:
        raise ValueError(f"{path} names no Arrow file, so the dataset is empty or not whole")
    return names


def open_arrow(path: str | os.PathLike[str], *, columns: Sequence[int] | None = None) -> tuple[Any, Any]:
    """Maps an Arrow file of the file or the stream format.

    Args:
        path: the file.
        columns: numbers of the columns to decode; None for all.

    Returns:
        All bytes, as an Arrow buffer, and a reader of the record batches.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an Arrow IPC file.
    """
    import pyarrow as pa

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


class StreamedBatch(NamedTuple):
    """Where a record batch is in a file of the stream format."""

    begin: int
    """First byte of its message."""
    end: int
    """One past its last byte."""
    num_rows: int


def streamed_batches(read: Callable[[int, int], bytes], size_bytes: int, where: str) -> list[StreamedBatch]:
    """Finds the record batches of a file of the stream format, from the frames of its messages alone.

    A message: 0xFFFFFFFF, the size of its metadata as int32, the metadata (a flatbuffer, padded), and its body.

    Args:
        read: returns bytes [begin, end) of the file.
        size_bytes: of the file.
        where: its path or URL, for messages.

    Raises:
        ValueError: it is not such a stream.
    """
    found: list[StreamedBatch] = []
    begin = 0
    try:
        while begin + 8 <= size_bytes:
            frame = read(begin, min(begin + _FRAME_BYTES, size_bytes))
            mark, metadata_bytes = struct.unpack_from("<Ii", frame)
            if mark != 0xFFFFFFFF:
                raise ValueError("a message does not begin with 0xFFFFFFFF")
            if metadata_bytes == 0:
                break
            if 8 + metadata_bytes > len(frame):
                frame = read(begin, min(begin + 8 + metadata_bytes, size_bytes))
            message = frame[8:]
            table = struct.unpack_from("<I", message)[0]
            kind, header, body = (_field(message, table, slot, form) for slot, form in ((1, "B"), (2, "I"), (3, "q")))
            end = begin + 8 + metadata_bytes + (body[1] if body else 0)
            if kind and header and kind[1] == _RECORD_BATCH:
                rows = _field(message, header[0] + header[1], 0, "q")
                found.append(StreamedBatch(begin, end, rows[1] if rows else 0))
            begin = end
    except (struct.error, ValueError) as error:
        raise ValueError(f"{where} cannot be read as an Arrow IPC stream at byte {begin}: {error}") from None
    return found


def _field(message: bytes, table: int, slot: int, form: str) -> tuple[int, int] | None:
    """Returns the offset and the value of a field of a flatbuffer's table; None where it has its default."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * slot >= struct.unpack_from("<H", message, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", message, vtable + 4 + 2 * slot)[0]
    return (table + offset, struct.unpack_from(f"<{form}", message, table + offset)[0]) if offset else None


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
    """Returns the Arrow type of a column; a ValueError where it is missing or there twice."""
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
