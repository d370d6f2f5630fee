"""Folders that `seqpack.prepare` wrote: a file of ids for each length; cut by these files."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.dataset import is_seqpack_layout, load_seqpack_layout
from packhorse.formats.files import FileStamp
from packhorse.formats.object_store import is_url
from packhorse.prepare.input._arrow_rows import map_array
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, Span, WholeFiles, changed, cut
from packhorse.prepare.input._rows import InputColumns, RawRows

_COUNTS, _POOLS = "counts.json", "pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqpackSpan(Span):
    """Consecutive ids of one length."""

    length: int

    def _read(self) -> Iterator[RawRows]:
        ids = map_array(self.path)
        end = self.first_row + self.num_rows
        if len(ids) < end:
            raise changed(self.path)
        for begin in range(self.first_row, end, BATCH_ROWS):
            some = np.array(ids[begin : min(begin + BATCH_ROWS, end)])
            yield RawRows(np.full(len(some), self.length), ids=some)


class SeqpackReader(WholeFiles):
    """See the top of the file."""

    kind = "seqpack"
    takes = "one folder that seqpack.prepare wrote; --id-column names the column that its ids came from, if any"
    is_alone = True
    suffixes = (_COUNTS,)

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        return not is_url(path) and is_seqpack_layout(Path(path)) and os.path.isfile(os.path.join(path, _COUNTS))

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(os.path.join(source, _COUNTS))

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [str(path) for counts in paths for path in sorted((Path(counts).parent / _POOLS).glob("*.npy"))]

    def open(self, paths: Sequence[str], columns: InputColumns, *, skips_bad_rows: bool) -> Opened:
        """See `Reader`."""
        (counts,) = paths
        if columns.length is not None:
            raise ValueError(f"{counts} is of a folder of seqpack, which has no columns: leave out --length-column")
        folder = Path(counts).parent
        _, _, _, pools = load_seqpack_layout(folder)
        spans: list[Span] = []
        files: list[InputFile] = []
        first_index = 0
        for length, ids in sorted(pools.items()):
            path = str(folder / _POOLS / f"{length}.npy")
            stamp = FileStamp.of(path)
            files.append(InputFile(path=path, stamp=stamp, num_rows=len(ids)))
            spans.extend(
                SeqpackSpan(
                    path=path,
                    stamp=stamp,
                    length=length,
                    first_row=first,
                    first_index=first_index + first,
                    num_rows=size,
                    columns=columns,
                    skips_bad_rows=skips_bad_rows,
                )
                for first, size in cut(len(ids))
            )
            first_index += len(ids)
        return Opened(kind=self.kind, spans=spans, files=files, columns=columns, gives_ids=True)
