"""Token files as input whose index says where sequences end: Megatron `.idx` and flat `.boundaries`; ids are entries.

Owns both readers, which read no tokens, and the file of keys beside a Megatron index. Leaves the form of the files to
`packhorse.formats`, and MDS shards to `_mds`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import FlatTokens, MegatronIndex, megatron_paths
from packhorse.formats.arrow import open_arrow
from packhorse.formats.beside_tokens import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import exists, is_file, open_binary
from packhorse.formats.loss_mask import tokens_of_mask
from packhorse.formats.megatron import HEADER, MAGIC, read_header
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.prepare.input._base import (
    BATCH_ROWS,
    InputFile,
    Opened,
    RowRange,
    WholeFiles,
    changed,
    cut_rows,
    first_bytes,
)
from packhorse.prepare.input._columns import InputColumns, refuse_columns
from packhorse.prepare.input._key_columns import KeyColumn, keys_of_files
from packhorse.prepare.input._rows import RawRows
from packhorse.prepare.input.arrow import column_of

_BOUNDARIES = ".boundaries"
_LENGTH, _END = np.dtype("<i4"), np.dtype("<i8")
"""Types of the numbers in a Megatron index, and in a file of ends."""


class _Pair(NamedTuple):
    """Paths or URLs of a pair of Megatron files."""

    token_file: str
    index_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRows(RowRange):
    """Consecutive entries of a Megatron index, which holds lengths."""

    def _read(self) -> Iterator[RawRows]:
        end = self.first_row + self.num_rows
        for lengths in _numbers(self.path, _LENGTH, self.first_row, end, header_bytes=HEADER.size):
            yield RawRows(lengths.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRows(RowRange):
    """Consecutive entries of a file of ends, whose differences are the lengths."""

    def _read(self) -> Iterator[RawRows]:
        first = max(0, self.first_row - 1)  # a length needs the end of the sequence before too
        # The end before the next length: [0] before sequence 0. In the middle of a file it is read first, so there is
        # none yet.
        end_before = np.zeros(1 if self.first_row == 0 else 0, _END)
        for ends in _numbers(self.path, _END, first, self.first_row + self.num_rows, header_bytes=0):
            yield RawRows(np.diff(ends, prepend=end_before))
            end_before = ends[-1:]


def _numbers(path: str, dtype: np.dtype[Any], first: int, end: int, *, header_bytes: int) -> Iterator[NDArray[Any]]:
    """Yields the numbers [first, end) of a file after its header, in arrays of at most BATCH_ROWS: dtype [n]."""
    with open_binary(path) as file:
        file.seek(header_bytes + first * dtype.itemsize)
        for _, size in cut_rows(end - first, BATCH_ROWS):
            size_bytes = size * dtype.itemsize
            data = file.read(size_bytes)
            if len(data) < size_bytes:
                raise changed(path)
            yield np.frombuffer(data, dtype)


class MegatronReader(WholeFiles):
    """Reads a Megatron index. If the `.bin` file is beside it on a disk, its size is compared with the index."""

    kind = "Megatron"
    takes = "one X.idx; a sequence's id is its entry"
    is_alone = True
    suffixes = (".idx",)
    magic = MAGIC

    def files(self, source: str) -> list[str]:
        """Returns the `.idx`, which a user may name by the `.bin` or by their common prefix too; see `Reader`."""
        return super().files(source if first_bytes(source, len(MAGIC)) == MAGIC else _pair(source).index_file)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is an index, or there is one beside it; see `Reader`."""
        if not path.endswith(".bin") and exists(path):
            return super().recognises(path)
        return exists(_pair(path).index_file) and not exists(path + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the tokens' file and the file of keys, which is read only from a disk; see `Reader`."""
        token_files = [_pair(path).token_file for path in paths]
        return token_files + [str(keys_path(path)) for path in paths if not is_url(path)]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths  # only one: the reader `is_alone`
        refuse_columns(path, "a Megatron index", columns)
        if is_url(path):
            num_rows = _entries_of_object(path)
        else:
            tokens = megatron_paths(path).bin_path
            index = MegatronIndex(path, bin_size_bytes=tokens.stat().st_size if tokens.exists() else None)
            index.refuse_sentences()
            num_rows = len(index)
        _refuse_loss_mask(path)
        file = InputFile(path=path, stamp=FileStamp.of(path), num_rows=num_rows)
        ranges = file.ranges(MegatronRows, columns, first_index=0)
        keys_file = str(keys_path(path))
        if is_url(path) or not exists(keys_file):
            return Opened(kind=self.kind, ranges=ranges, files=[file], columns=columns)
        keys = _keys_beside(keys_file, path, num_rows)
        # The file of keys has no rows of its own; it is listed so that its changes are noticed.
        beside = InputFile(path=keys_file, stamp=FileStamp.of(keys_file), num_rows=0)
        return Opened(kind=self.kind, ranges=ranges, files=[file, beside], columns=columns, keys=keys)


class FlatReader(WholeFiles):
    """Reads the ends of documents beside a flat token file."""

    kind = "flat"
    takes = "one x.bin with x.bin.boundaries beside it; a sequence's id is its entry"
    is_alone = True
    suffixes = (_BOUNDARIES,)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is a file of ends, or has one and no Megatron index beside it; see `Reader`."""
        is_file_of_ends = super().recognises(path)
        has_ends = exists(path + _BOUNDARIES) and is_file(path)
        return is_file_of_ends or (has_ends and not exists(_pair(path).index_file))

    def files(self, source: str) -> list[str]:
        """Returns the file of ends, which a user may name by the tokens' file too; see `Reader`."""
        return super().files(source if source.endswith(_BOUNDARIES) else source + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the tokens' file; see `Reader`."""
        return [path.removesuffix(_BOUNDARIES) for path in paths]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths  # only one: the reader `is_alone`
        refuse_columns(path, "a flat token file", columns)
        if is_url(path):
            size_bytes = FileStamp.of(path).size_bytes
            if size_bytes % _END.itemsize:
                raise ValueError(
                    f"{without_secrets(path)} has {size_bytes} bytes, not a multiple of 8: it is truncated"
                )
            num_rows = size_bytes // _END.itemsize
        else:
            num_rows = len(FlatTokens(path))
        _refuse_loss_mask(path)
        file = InputFile(path=path, stamp=FileStamp.of(path), num_rows=num_rows)
        return Opened(
            kind=self.kind, ranges=file.ranges(FlatRows, columns, first_index=0), files=[file], columns=columns
        )


def _pair(path: str) -> _Pair:
    """Returns the `.bin` and the `.idx`, from either of them or their common prefix."""
    if is_url(path):
        prefix = path.removesuffix(".idx").removesuffix(".bin")
        return _Pair(f"{prefix}.bin", f"{prefix}.idx")
    return _Pair(*map(str, megatron_paths(path)))


def _entries_of_object(url: str) -> int:
    """Returns the number of sequences in an index in an object store, from its header; the rest is not checked here."""
    shown = without_secrets(url)
    header = read_header(first_bytes(url, HEADER.size), FileStamp.of(url).size_bytes, shown)
    num_rows = header.num_sequences
    num_documents = max(0, header.num_document_indices - 1)  # where each begins, and where the last ends
    if num_documents < num_rows:
        raise ValueError(
            f"{shown} groups {num_rows:,} sequences, such as sentences, into {num_documents:,} documents, "
            "and packing would shuffle them apart; copy the pair to a disk and join the sentences: `packhorse tokenize "
            "--input COPY.idx --output JOINED`"
        )
    return num_rows


def _refuse_loss_mask(path: str) -> None:
    """Raises a ValueError if an index or a file of ends has the name of a loss mask's."""
    if prefix := tokens_of_mask(path):
        shown = without_secrets(path)
        raise ValueError(
            f"{shown} is a loss mask, not tokens: prepare {without_secrets(prefix)}.idx; loaders use the mask beside it"
        )


def _keys_beside(path: str, index: str, num_rows: int) -> KeyColumn | None:
    """Returns the keys that `packhorse tokenize` wrote beside an index; refuses a file of keys for other tokens."""
    num_keys = sum(map(len, column_of(path, KEY_COLUMN)))
    if num_keys != num_rows:
        raise ValueError(
            f"{path} names {num_keys:,} sequences, and {index} has {num_rows:,}: tokenize again, or remove that file "
            "to go without keys"
        )
    num_tokens = (open_arrow(path).reader.schema.metadata or {}).get(NUM_TOKENS.encode())
    if num_tokens is not None and int(num_tokens) != int(MegatronIndex(index).lengths.sum(dtype=np.int64)):
        raise ValueError(
            f"{path} was written with other tokens than {index} tells of: tokenize again, or remove that file to go "
            "without keys"
        )
    return keys_of_files(InputColumns(key=KEY_COLUMN), [path], column_of)
