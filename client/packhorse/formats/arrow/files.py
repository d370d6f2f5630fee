"""Opening Arrow IPC files, and reading their record batches.

pyarrow is imported when a file is opened. Leaves columns to `arrow.columns`, which files a path names to
`arrow.folders`, and finding the record batches of streams in stores to `arrow.streams`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from packhorse.formats.object_store import TokenStoreError, without_secrets
from packhorse.storage import check_plain

_FILE_MAGIC = b"ARROW1"


class OpenArrow(NamedTuple):
    """A mapped Arrow file."""

    whole: Any
    """All its bytes, as an Arrow buffer."""
    reader: Any
    """A reader of its record batches."""


def open_arrow(path: str | os.PathLike[str], *, columns: Sequence[int] | None = None) -> OpenArrow:
    """Maps an Arrow file of the file or the stream format.

    Args:
        path: the file.
        columns: numbers of the columns to decode; None for all.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is not a plain file.
        ValueError: it is not an Arrow IPC file, or cannot be read.
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
    return OpenArrow(whole, reader)


def read_arrow(file: Any, where: str, *, columns: Sequence[int] | None = None) -> Any:
    """Returns a reader of the record batches of an open file, such as a `RangeFile`; bytes are read when needed.

    Args:
        file: a binary file at its beginning.
        where: path or URL of the file, for messages.
        columns: numbers of the columns to decode; None for all.

    Raises:
        FileNotFoundError, PermissionError, TokenStoreError: it cannot be reached.
        ValueError: it is not an Arrow IPC file.
    """
    import pyarrow as pa

    with _readable(where):
        magic = file.read(len(_FILE_MAGIC))
        file.seek(0)
        return _reader(pa.PythonFile(file, mode="r"), magic, columns)


def _reader(source: Any, magic: bytes, columns: Sequence[int] | None) -> Any:
    """Returns a reader of the file format if the file begins with its magic, otherwise of the stream format."""
    from pyarrow import ipc

    open_reader = ipc.open_file if magic == _FILE_MAGIC else ipc.open_stream
    options = ipc.IpcReadOptions(use_threads=False, included_fields=None if columns is None else list(columns))
    return open_reader(source, options=options)


def record_batches(reader: Any, path: str | os.PathLike[str], first: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yields the record batches [first, end) of a reader; all from `first` on if `end` is None.

    `path` is the file's path or URL, for messages. It raises what `read_arrow` does.
    """
    with _readable(without_secrets(os.fspath(path))):
        if hasattr(reader, "get_batch"):  # the file format; a reader of the stream format can only be iterated
            for number in range(first, reader.num_record_batches if end is None else end):
                yield reader.get_batch(number)
            return
        for number, batch in enumerate(reader):
            if end is not None and number >= end:
                return
            if number >= first:
                yield batch


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Turns errors of reading into a ValueError, except those that say that the file cannot be reached."""
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, PermissionError, TokenStoreError):  # subclasses of OSError
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as an Arrow IPC file: {error}") from None
