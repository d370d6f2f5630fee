"""Token files as input whose index says where sequences end: Megatron `.idx` and flat `.boundaries`; ids are entries.

Owns both readers, which read the index only, and the file of keys beside a Megatron index. Leaves the form of the files
to `packhorse.formats`, and MDS shards to `_mds`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from packhorse.formats import FlatTokens, MegatronIndex, megatron_paths
from packhorse.formats.arrow import open_arrow
from packhorse.formats.beside_tokens import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import exists, is_file, open_binary
from packhorse.formats.loss_mask import tokens_of_mask
from packhorse.formats.megatron import HEADER, MAGIC, read_header
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, RowRange, WholeFiles, changed, first_bytes
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
class StoredRows(RowRange):
    """Consecutive entries of one index, of either kind."""

    is_megatron: bool
    """Whether the file holds lengths, int32, after a Megatron header. If not, it holds the ends of sequences, int64,
    without a header."""

    def _read(self) -> Iterator[RawRows]:
        """Yields lengths as they are stored, or as differences of the ends of sequences."""
        dtype, header_bytes = (_LENGTH, HEADER.size) if self.is_megatron else (_END, 0)
        begin, end = self.first_row, self.first_row + self.num_rows
        # The end of the sequence before those that are read next; None if it is the first number that is read.
        end_before: int | None = 0
        if not self.is_megatron and begin > 0:
            begin, end_before = begin - 1, None
        with open_binary(self.path) as file:
            file.seek(header_bytes + begin * dtype.itemsize)
            while begin < end:
                size_bytes = min(BATCH_ROWS, end - begin) * dtype.itemsize
                data = file.read(size_bytes)
                if len(data) < size_bytes:
                    raise changed(self.path)
                stored = np.frombuffer(data, dtype)
                begin += len(stored)
                if self.is_megatron:
                    yield RawRows(stored.astype(np.int64))
                    continue
                yield RawRows(np.diff(stored) if end_before is None else np.diff(stored, prepend=end_before))
                end_before = int(stored[-1])


class MegatronReader(WholeFiles):
    """Reads a Megatron index. If the `.bin` file is beside it, its size is compared with the index."""

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
        """Returns the tokens' file and the file of keys; see `Reader`."""
        return [name for path in paths for name in (_pair(path).token_file, str(keys_path(path)))]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths
        refuse_columns(path, "a Megatron index", columns)
        if is_url(path):
            num_rows = _entries_of_object(path)
        else:
            tokens = megatron_paths(path).bin_path
            index = MegatronIndex(path, bin_size_bytes=tokens.stat().st_size if tokens.exists() else None)
            index.refuse_sentences()
            num_rows = len(index)
        return _opened(self.kind, path, num_rows, columns)


class FlatReader(WholeFiles):
    """Reads the ends of documents beside a flat token file."""

    kind = "flat"
    takes = "one x.bin with x.bin.boundaries beside it; a sequence's id is its entry"
    is_alone = True
    suffixes = (_BOUNDARIES,)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is a file of ends, or has one and no Megatron index beside it; see `Reader`."""
        is_index = super().recognises(path)
        return is_index or (exists(path + _BOUNDARIES) and is_file(path) and not exists(_pair(path).index_file))

    def files(self, source: str) -> list[str]:
        """Returns the file of ends, which a user may name by the tokens' file too; see `Reader`."""
        return super().files(source if source.endswith(_BOUNDARIES) else source + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the tokens' file; see `Reader`."""
        return [path.removesuffix(_BOUNDARIES) for path in paths]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths
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
        return _opened(self.kind, path, num_rows, columns)


def _pair(path: str) -> _Pair:
    """Returns the `.bin` and the `.idx`, from either of them or their common prefix."""
    if is_url(path):
        prefix = path.removesuffix(".idx").removesuffix(".bin")
        return _Pair(f"{prefix}.bin", f"{prefix}.idx")
    return _Pair(*map(str, megatron_paths(path)))


def _entries_of_object(url: str) -> int:
    """Returns the number of sequences in an index in an object store, from its header; the rest is not checked here."""
    shown = without_secrets(url)
    num_rows, num_documents, _ = read_header(first_bytes(url, HEADER.size), FileStamp.of(url).size_bytes, shown)
    if num_documents <= num_rows:
        raise ValueError(
            f"{shown} groups {num_rows:,} sequences, such as sentences, into {max(num_documents - 1, 0):,} documents, "
            "and packing would shuffle them apart; copy the pair to a disk and join the sentences: `packhorse tokenize "
            "--input COPY.idx --output JOINED`"
        )
    return num_rows


def _opened(kind: str, path: str, num_rows: int, columns: InputColumns) -> Opened:
    """Returns the rows of an index; refuses a loss mask, and adds the keys that are beside a Megatron index on disk."""
    if prefix := tokens_of_mask(path):
        shown = without_secrets(path)
        raise ValueError(
            f"{shown} is a loss mask, not tokens: prepare {without_secrets(prefix)}.idx; loaders use the mask beside it"
        )
    files = [InputFile(path=path, stamp=FileStamp.of(path), num_rows=num_rows)]
    is_megatron = kind == MegatronReader.kind
    ranges = files[0].ranges(StoredRows, columns, 0, is_megatron=is_megatron)
    keys, key_file = None, str(keys_path(path))
    if is_megatron and not is_url(path) and exists(key_file):
        keys = _keys_beside(key_file, path, num_rows)
        files.append(InputFile(path=key_file, stamp=FileStamp.of(key_file), num_rows=0))
    return Opened(kind=kind, ranges=ranges, files=files, columns=columns, keys=keys)


def _keys_beside(path: str, index: str, num_rows: int) -> KeyColumn | None:
    """Returns the keys that `packhorse tokenize` wrote beside an index; refuses a file of keys for other tokens."""
    num_keys = sum(map(len, column_of(path, KEY_COLUMN)))
    if num_keys != num_rows:
        raise ValueError(
            f"{path} names {num_keys:,} sequences, and {index} has {num_rows:,}: tokenize again, or remove that file "
            "to go without keys"
        )
    num_tokens = (open_arrow(path)[1].schema.metadata or {}).get(NUM_TOKENS.encode())
    if num_tokens is not None and int(num_tokens) != int(MegatronIndex(index).lengths.sum(dtype=np.int64)):
        raise ValueError(
            f"{path} was written with other tokens than {index} tells of: tokenize again, or remove that file to go "
            "without keys"
        )
    return keys_of_files(InputColumns(key=KEY_COLUMN), [path], column_of)
