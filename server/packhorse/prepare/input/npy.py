"""NumPy files as input: an array of lengths, or of records with fields of lengths and ids.

Owns the reader of such files, and mapping an array file from a disk or a store. Arrays in a program's memory are in
`held`, and folders of seqpack, whose pools are array files of ids, in `_seqpack`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.name_lists import listed
from packhorse.formats.object_store import StoredObject, TokenStoreError, is_url, without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, RowRange, WholeFiles, changed, first_bytes
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._rows import RawRows, as_amounts
from packhorse.storage import check_plain

_OF_DATASETS = ("pools", "pools.npy", "starts.npy", "over_length.npy")
"""What a prepared dataset holds: array files that are not taken as lengths, and seqpack's folder of such files."""

_MAGIC, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
"""First bytes of an array file (.npy), and of a file of several arrays (.npz)."""
_HEADER_BYTES = 1 << 16
"""Bytes at the beginning of an array in an object store that are read for its header."""

PARSING = Lock()
"""Held while NumPy parses a header: Python 3.11's parser fails if threads use it at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyRows(RowRange):
    """Consecutive elements of an array file."""

    def _read(self) -> Iterator[RawRows]:
        array = load_npy(self.path)
        end = self.first_row + self.num_rows
        if len(array) < end:
            raise changed(self.path)
        yield from array_rows(array, self.columns, self.first_row, end)


class NpyReader(WholeFiles):
    """Reads NumPy arrays of lengths, or of records with fields of lengths and ids."""

    kind = "NumPy"
    takes = "a .npy file of lengths, or of records with fields of lengths and ids; a folder of them, or a pattern"
    suffixes = (".npy",)
    magic = _MAGIC

    def files(self, source: str) -> list[str]:
        """Returns the array files of a source; refuses those of a prepared dataset, which hold ids; see `Reader`."""
        found = super().files(source)
        for path in (Path(name) for name in found if not is_url(name)):
            for folder in path.parents[:2]:  # the second is the dataset's for an array file in `pools`
                if (folder / "manifest.json").exists() and path.relative_to(folder).parts[0] in _OF_DATASETS:
                    raise ValueError(
                        f"{path} holds ids of the prepared dataset {folder}, no lengths; give what it is made of"
                    )
        return found

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        ranges: list[RowRange] = []
        files: list[InputFile] = []
        first_index = 0
        for path in paths:
            stamp = FileStamp.of(path)
            array = load_npy(path)
            check_array(array, columns, without_secrets(path))
            files.append(InputFile(path=path, stamp=stamp, num_rows=len(array)))
            ranges += files[-1].ranges(NpyRows, columns, first_index)
            first_index += len(array)
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=columns)


def load_npy(path: str) -> "NDArray[Any] | _StoredArray":
    """Maps an array file, or reads the header of an array in an object store.

    Raises:
        ValueError: the file is not an array, holds several arrays, or holds Python objects.
    """
    try:
        if is_url(path):
            return _StoredArray(path)
        array = map_array(path)
    except (FileNotFoundError, PermissionError, TokenStoreError):
        raise
    except (ValueError, EOFError, OSError) as error:
        if not first_bytes(path, len(_MAGIC)).startswith((_MAGIC, _ZIP)):
            raise ValueError(
                f"{without_secrets(path)} has no header of NumPy. If it holds bare tokens, as OLMo writes them, "
                "nothing says where documents end: rename it to X.bin with their ends beside it, in X.bin.boundaries "
                "(int64, cumulative, in tokens), and prepare X.bin"
            ) from None
        is_pickled = "pickle" in str(error)  # NumPy says so of an array of objects
        why = "it holds Python objects, which are not read" if is_pickled else str(error)
        raise ValueError(f"{without_secrets(path)} cannot be read as a NumPy array: {why}") from None
    if not isinstance(array, np.ndarray):  # an .npz
        raise ValueError(f"{path} holds several arrays; save only the lengths with numpy.save")
    return array


def check_array(array: "NDArray[Any] | _StoredArray", columns: InputColumns, where: str) -> None:
    """Refuses an array that is not of integers with one axis, or lacks a field that is named; raises a ValueError."""
    names = array.dtype.names
    if array.ndim != 1:
        raise ValueError(f"{where} has shape {list(array.shape)}, but lengths are a list: one number for each sequence")
    if names is None:
        if columns.names or columns.key:
            raise ValueError(
                f"{where} is one array of {array.dtype}, which has no columns: leave out "
                + parameter("length_column")
                + "/"
                + parameter("id_column")
                + "/"
                + parameter("group_column")
            )
        dtypes = {"lengths": array.dtype}
    else:
        if columns.length is None:
            raise ValueError(
                f"{where} has fields {listed(map(repr, names))}: "
                + parameter("length_column")
                + " must name the lengths"
            )
        for name in columns.names:
            if name not in names:
                raise ValueError(f"{where} has no field {name!r}; its fields are: {listed(map(repr, names))}")
        dtypes = {f"field {name!r}": array.dtype[name] for name in columns.names}
    for what, dtype in dtypes.items():
        if dtype.kind not in "iu":
            raise ValueError(f"{where}: {what} holds {dtype}, but integers are needed")


def array_rows(
    array: "NDArray[Any] | _StoredArray", columns: InputColumns, first: int = 0, end: int | None = None
) -> Iterator[RawRows]:
    """Yields the rows [first, end) of an array that `check_array` accepted, in batches; None is the array's end."""
    end = len(array) if end is None else end
    for begin in range(first, end, BATCH_ROWS):
        rows = array[begin : min(begin + BATCH_ROWS, end)]
        if columns.length is None:
            yield RawRows(lengths=np.asarray(rows))
        else:
            ids, groups = (None if name is None else np.ascontiguousarray(rows[name]) for name in columns.integers)
            amounts = [as_amounts(rows[name]) for name in columns.amounts]
            resources = np.stack(amounts, axis=1) if amounts else None
            lengths = np.ascontiguousarray(rows[columns.length])
            yield RawRows(lengths=lengths, ids=ids, groups=groups, resources=resources)


class _StoredArray:
    """An array in an object store, of which slices are read, as if it were an array in memory with one axis.

    Raises:
        ValueError: the object is not an array, holds Python objects, or ends before its last element.
    """

    def __init__(self, url: str) -> None:
        self._object = StoredObject(url)
        header = BytesIO(self._object.read(0, min(_HEADER_BYTES, self._object.size_bytes)))
        version = np.lib.format.read_magic(header)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with PARSING:
            self.shape, _, self.dtype = read(header)
        self.ndim = len(self.shape)
        self._first_byte = header.tell()
        if self.dtype.hasobject:
            raise ValueError("it holds Python objects")
        if self._first_byte + int(np.prod(self.shape)) * self.dtype.itemsize > self._object.size_bytes:
            raise ValueError("it ends before its last element")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Reads consecutive rows; the slice's step is ignored."""
        first, stop, _ = rows.indices(len(self))
        begin, end = (self._first_byte + index * self.dtype.itemsize for index in (first, max(first, stop)))
        return np.frombuffer(self._object.read(begin, end), self.dtype)


def map_array(path: str | Path, *, writable: bool = False) -> NDArray[Any]:
    """Maps an array file; safe to be used by many threads.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder, "lengths.npy"), [5, 3])
        ...     map_array(Path(folder, "lengths.npy")).tolist()
        [5, 3]

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is not an array, or holds Python objects.
    """
    check_plain(path)
    with PARSING:
        array: NDArray[Any] = np.load(path, mmap_mode="r+" if writable else "r", allow_pickle=False)
    return array
