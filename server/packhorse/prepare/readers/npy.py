"""NumPy files of lengths: one array of integers, or of records with a field of lengths and one of ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.columns import listed
from packhorse.formats.files import FileStamp
from packhorse.prepare.readers._base import (
    BATCH_ROWS,
    Columns,
    InputFile,
    Opened,
    RawRows,
    Span,
    WholeFiles,
    changed,
    cut,
)

_OF_DATASETS = ("pools", "pools.npy", "starts.npy", "over_length.npy")
"""Arrays, and a folder of them, of prepared datasets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NpySpan(Span):
    """Consecutive elements of an array file."""

    def _read(self) -> Iterator[RawRows]:
        array = load_npy(self.path)
        if len(array) < self.first_row + self.num_rows:
            raise changed(self.path)
        yield from array_rows(array[self.first_row : self.first_row + self.num_rows], self.columns)


class NpyReader(WholeFiles):
    """See the top of the file."""

    kind = "NumPy"
    takes = "a .npy file of lengths, or of records with fields of lengths and ids; a folder of them, or a pattern"
    suffixes = (".npy",)
    magic = b"\x93NUMPY"

    def files(self, source: str) -> list[str]:
        """See `Reader`; ids of a prepared dataset, which are arrays too, are refused."""
        found = super().files(source)
        for path in map(Path, found):
            for folder in path.parents[:2]:
                if (folder / "manifest.json").exists() and path.relative_to(folder).parts[0] in _OF_DATASETS:
                    raise ValueError(
                        f"{path} holds ids of the prepared dataset {folder}, no lengths; give what it is made of"
                    )
        return found

    def open(self, paths: Sequence[str], columns: Columns, *, skips_bad_rows: bool) -> Opened:
        """See `Reader`."""
        spans: list[Span] = []
        files: list[InputFile] = []
        first_index = 0
        for path in paths:
            stamp = FileStamp.of(path)
            array = load_npy(path)
            check_array(array, columns, path)
            spans.extend(
                NpySpan(
                    path=path,
                    stamp=stamp,
                    first_row=first,
                    first_index=first_index + first,
                    num_rows=size,
                    columns=columns,
                    skips_bad_rows=skips_bad_rows,
                )
                for first, size in cut(len(array))
            )
            files.append(InputFile(path=path, stamp=stamp, num_rows=len(array)))
            first_index += len(array)
        return Opened(kind=self.kind, spans=spans, files=files, columns=columns)


def load_npy(path: str) -> NDArray[Any]:
    """Maps an array file; a ValueError where it is none, or holds Python objects."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a NumPy array: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds several arrays; save the lengths alone with numpy.save")
    return array


def check_array(array: NDArray[Any], columns: Columns, where: str) -> None:
    """Refuses an array that holds no lengths, or no such fields; a ValueError."""
    names = array.dtype.names
    if array.ndim != 1:
        raise ValueError(f"{where} has shape {list(array.shape)}, but lengths are a list: one number for each sequence")
    if names is None:
        if columns.length is not None or columns.id is not None:
            raise ValueError(
                f"{where} is one array of {array.dtype}, which has no columns: leave out --length-column/--id-column"
            )
        kinds = {"lengths": array.dtype}
    else:
        if columns.length is None:
            raise ValueError(f"{where} has fields {listed(map(repr, names))}: --length-column must name the lengths")
        wanted = [name for name in (columns.length, columns.id) if name is not None]
        for name in wanted:
            if name not in names:
                raise ValueError(f"{where} has no field {name!r}; its fields are: {listed(map(repr, names))}")
        kinds = {f"field {name!r}": array.dtype[name] for name in wanted}
    for what, kind in kinds.items():
        if kind.kind not in "iu":
            raise ValueError(f"{where}: {what} holds {kind}, but integers are needed")


def array_rows(array: NDArray[Any], columns: Columns) -> Iterator[RawRows]:
    """Yields the rows of an array that `check_array` let pass, in pieces."""
    for begin in range(0, len(array), BATCH_ROWS):
        rows = array[begin : begin + BATCH_ROWS]
        if columns.length is None:
            yield RawRows(np.asarray(rows))
        else:
            yield RawRows(
                np.ascontiguousarray(rows[columns.length]),
                ids=None if columns.id is None else np.ascontiguousarray(rows[columns.id]),
            )
