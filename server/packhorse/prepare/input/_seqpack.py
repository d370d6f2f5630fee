"""`SeqpackReader`: a folder that seqpack prepared as input, by the pools of ids in it.

Leaves array files as such to `npy`, and the layout to `packhorse.dataset`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.dataset import is_seqpack_layout, load_seqpack_layout
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.object_store import is_url
from packhorse.parameters import parameter
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, RowRange, WholeFiles, changed
from packhorse.prepare.input._columns import InputColumns, refuse_columns
from packhorse.prepare.input._rows import RawRows
from packhorse.prepare.input.npy import map_array

_COUNTS, _POOLS = "counts.json", "pools"
"""Names in seqpack's folder: the histogram, and the folder of a file of ids for each length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqpackRows(RowRange):
    """Consecutive ids of one pool file of seqpack."""

    length: int
    """Length in tokens of all sequences in the pool."""

    def _read(self) -> Iterator[RawRows]:
        ids = map_array(self.path)
        end = self.first_row + self.num_rows
        if len(ids) < end:
            raise changed(self.path)
        for begin in range(self.first_row, end, BATCH_ROWS):
            some = np.array(ids[begin : min(begin + BATCH_ROWS, end)])
            yield RawRows(np.full(len(some), self.length), ids=some)


class SeqpackReader(WholeFiles):
    """Reads a folder that seqpack prepared: the ids of its pools, with the pools' lengths."""

    kind = "seqpack"
    takes = "one folder that seqpack.prepare wrote; --id-column names the column that its ids came from, if any"
    is_alone = True
    suffixes = (_COUNTS,)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is a folder in seqpack's layout on a disk; see `Reader`."""
        return not is_url(path) and is_seqpack_layout(Path(path)) and os.path.isfile(os.path.join(path, _COUNTS))

    def files(self, source: str) -> list[str]:
        """Returns counts.json only, which stands for the whole folder; see `Reader`."""
        return super().files(os.path.join(source, _COUNTS))

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the pool files; see `Reader`."""
        return [str(path) for counts in paths for path in sorted((Path(counts).parent / _POOLS).glob("*.npy"))]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Returns ranges for each pool file, by ascending length; see `Reader`."""
        (counts,) = paths
        if columns.resources:
            refuse_columns(counts, "of a folder of seqpack", columns)
        if columns.length is not None:
            raise ValueError(
                f"{counts} is of a folder of seqpack, which has no columns: leave out " + parameter("length_column")
            )
        folder = Path(counts).parent
        *_, pools = load_seqpack_layout(folder)  # length → ids
        ranges: list[RowRange] = []
        files: list[InputFile] = []
        first_index = 0
        for length, ids in sorted(pools.items()):
            path = str(folder / _POOLS / f"{length}.npy")
            files.append(InputFile(path=path, stamp=FileStamp.of(path), num_rows=len(ids)))
            ranges += files[-1].ranges(SeqpackRows, columns, first_index, length=length)
            first_index += len(ids)
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=columns, gives_ids=True)
