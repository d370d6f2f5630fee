"""Token files whose index says where sequences end: Megatron `.idx` and flat `.boundaries`; ids are entries."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.formats import FlatTokens, MegatronIndex, megatron_paths
from packhorse.formats.files import FileStamp
from packhorse.formats.megatron import MAGIC
from packhorse.prepare.readers._base import (
    BATCH_ROWS,
    SPAN_ROWS,
    Columns,
    InputFile,
    Opened,
    RawRows,
    Span,
    WholeFiles,
    changed,
    cut,
    first_bytes,
    refuse_columns,
)

_BOUNDARIES = ".boundaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSpan(Span):
    """Consecutive entries of one index."""

    index: MegatronIndex | FlatTokens
    """Pickles by its path."""

    def _read(self) -> Iterator[RawRows]:
        stored = self.index.lengths if isinstance(self.index, MegatronIndex) else self.index.boundaries
        end = self.first_row + self.num_rows
        if len(stored) < end:
            raise changed(self.path)
        for begin in range(self.first_row, end, BATCH_ROWS):
            stop = min(begin + BATCH_ROWS, end)
            if isinstance(self.index, MegatronIndex):
                yield RawRows(np.array(stored[begin:stop], dtype=np.int64))
            else:
                yield RawRows(np.diff(stored[begin:stop], prepend=stored[begin - 1] if begin else 0))


class MegatronReader(WholeFiles):
    """A Megatron index; its `.bin` is compared with it where it is there."""

    kind = "Megatron"
    takes = "one X.idx; a sequence's id is its entry"
    is_alone = True
    suffixes = (".idx",)
    magic = MAGIC

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(source if first_bytes(source, len(MAGIC)) == MAGIC else str(megatron_paths(source)[1]))

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        if os.path.exists(path) and not path.endswith(".bin"):
            return super().recognises(path)
        return megatron_paths(path)[1].exists() and not os.path.exists(path + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [str(megatron_paths(path)[0]) for path in paths]

    def open(self, paths: Sequence[str], columns: Columns, *, skips_bad_rows: bool) -> Opened:
        """See `Reader`."""
        (path,) = paths
        refuse_columns(path, "a Megatron index", columns)
        tokens = megatron_paths(path)[0]
        index = MegatronIndex(path, bin_size_bytes=tokens.stat().st_size if tokens.exists() else None)
        return _opened(self.kind, path, index, columns, skips_bad_rows)


class FlatReader(WholeFiles):
    """A flat token file with the documents' ends beside it."""

    kind = "flat"
    takes = "one x.bin with x.bin.boundaries beside it; a sequence's id is its entry"
    is_alone = True
    suffixes = (_BOUNDARIES,)

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        is_one = (
            os.path.isfile(path) and os.path.exists(path + _BOUNDARIES) and not Path(path).with_suffix(".idx").exists()
        )
        return is_one or super().recognises(path)

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(source if source.endswith(_BOUNDARIES) else source + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [path.removesuffix(_BOUNDARIES) for path in paths]

    def open(self, paths: Sequence[str], columns: Columns, *, skips_bad_rows: bool) -> Opened:
        """See `Reader`."""
        (path,) = paths
        refuse_columns(path, "a flat token file", columns)
        return _opened(self.kind, path, FlatTokens(path), columns, skips_bad_rows)


def _opened(kind: str, path: str, index: MegatronIndex | FlatTokens, columns: Columns, skips_bad_rows: bool) -> Opened:
    stamp = FileStamp.of(path)
    spans = [
        StoredSpan(
            path=path,
            stamp=stamp,
            index=index,
            first_row=first,
            first_index=first,
            num_rows=size,
            columns=columns,
            skips_bad_rows=skips_bad_rows,
        )
        for first, size in cut(len(index), SPAN_ROWS)
    ]
    return Opened(
        kind=kind, spans=spans, files=[InputFile(path=path, stamp=stamp, num_rows=len(index))], columns=columns
    )
