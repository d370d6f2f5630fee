"""Token files whose index says where sequences end: Megatron `.idx` and flat `.boundaries`; ids are entries."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from packhorse.formats import FlatTokens, MdsShards, MegatronIndex, megatron_paths
from packhorse.formats.arrow import evident_column, listed, open_arrow
from packhorse.formats.files import FileStamp, exists, is_file, open_binary
from packhorse.formats.keys import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.formats.loss_mask import tokens_of_mask
from packhorse.formats.mds import INDEX, INTEGERS, array_type
from packhorse.formats.megatron import HEADER, MAGIC, read_header
from packhorse.formats.object_store import for_each, is_url, without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, RowRange, changed
from packhorse.prepare.input._rows import InputColumns, RawRows, as_amounts, evident_lengths
from packhorse.prepare.input._tables import KeyColumn
from packhorse.prepare.input._whole_files import WholeFiles, first_bytes, keys_of_files, refuse_columns
from packhorse.prepare.input.arrow import column_of

_BOUNDARIES = ".boundaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows(RowRange):
    """Consecutive entries of one index."""

    is_megatron: bool
    """Whether the file has lengths after a Megatron header: int32; else it has the ends of sequences alone: int64."""

    def _read(self) -> Iterator[RawRows]:
        dtype, header_bytes = (np.dtype("<i4"), HEADER.size) if self.is_megatron else (np.dtype("<i8"), 0)
        end = self.first_row + self.num_rows
        begin = self.first_row - (not self.is_megatron and self.first_row > 0)  # the one before has its end there
        before = None if begin < self.first_row else 0
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
                yield RawRows(np.diff(stored) if before is None else np.diff(stored, prepend=before))
                before = int(stored[-1])


class MegatronReader(WholeFiles):
    """A Megatron index; its `.bin` is compared with it where it is there."""

    kind = "Megatron"
    takes = "one X.idx; a sequence's id is its entry"
    is_alone = True
    suffixes = (".idx",)
    magic = MAGIC

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(source if first_bytes(source, len(MAGIC)) == MAGIC else _pair(source)[1])

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        if not path.endswith(".bin") and exists(path):
            return super().recognises(path)
        return exists(_pair(path)[1]) and not exists(path + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [name for path in paths for name in (_pair(path)[0], str(keys_path(path)))]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths
        refuse_columns(path, "a Megatron index", columns)
        if is_url(path):
            num_rows = _entries_of_object(path)
        else:
            tokens = megatron_paths(path)[0]
            index = MegatronIndex(path, bin_size_bytes=tokens.stat().st_size if tokens.exists() else None)
            index.refuse_sentences()
            num_rows = len(index)
        return _opened(self.kind, path, num_rows, columns)


class FlatReader(WholeFiles):
    """A flat token file with the documents' ends beside it."""

    kind = "flat"
    takes = "one x.bin with x.bin.boundaries beside it; a sequence's id is its entry"
    is_alone = True
    suffixes = (_BOUNDARIES,)

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        is_index = super().recognises(path)
        return is_index or (exists(path + _BOUNDARIES) and is_file(path) and not exists(_pair(path)[1]))

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(source if source.endswith(_BOUNDARIES) else source + _BOUNDARIES)

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [path.removesuffix(_BOUNDARIES) for path in paths]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (path,) = paths
        refuse_columns(path, "a flat token file", columns)
        if is_url(path):
            num_rows, more = divmod(FileStamp.of(path).size_bytes, 8)
            if more:
                raise ValueError(
                    f"{without_secrets(path)} has {8 * num_rows + more} bytes, not a multiple of 8: it is truncated"
                )
        else:
            num_rows = len(FlatTokens(path))
        return _opened(self.kind, path, num_rows, columns)


def _pair(path: str) -> tuple[str, str]:
    """The `.bin` and the `.idx` of a path or URL of either, or of their prefix."""
    if is_url(path):
        prefix = path.removesuffix(".idx").removesuffix(".bin")
        return f"{prefix}.bin", f"{prefix}.idx"
    tokens, index = megatron_paths(path)
    return str(tokens), str(index)


def _entries_of_object(url: str) -> int:
    """Returns the sequences of an index in a store; whoever loads from it checks it as a whole."""
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
    if prefix := tokens_of_mask(path):
        shown = without_secrets(path)
        raise ValueError(
            f"{shown} is a loss mask, not tokens: prepare {without_secrets(prefix)}.idx; loaders use the mask beside it"
        )
    files = [InputFile(path=path, stamp=FileStamp.of(path), num_rows=num_rows)]
    ranges = files[0].ranges(StoredRows, columns, 0, is_megatron=kind == MegatronReader.kind)
    keys = None
    if kind == MegatronReader.kind and not is_url(path) and (beside := str(keys_path(path))) and exists(beside):
        keys = _keys_beside(beside, path, num_rows)
        files.append(InputFile(path=beside, stamp=FileStamp.of(beside), num_rows=0))
    return Opened(kind=kind, ranges=ranges, files=files, columns=columns, keys=keys)


def _keys_beside(path: str, index: str, num_rows: int) -> KeyColumn | None:
    """Returns what reads the keys that `packhorse tokenize` wrote beside an index."""
    found = sum(map(len, column_of(path, KEY_COLUMN)))
    if found != num_rows:
        raise ValueError(
            f"{path} names {found:,} sequences, and {index} has {num_rows:,}: tokenize again, or remove that file "
            "to go without keys"
        )
    stated = (open_arrow(path)[1].schema.metadata or {}).get(NUM_TOKENS.encode())
    if stated is not None and int(stated) != int(MegatronIndex(index).lengths.sum(dtype=np.int64)):
        raise ValueError(
            f"{path} was written with other tokens than {index} tells of: tokenize again, or remove that file to go "
            "without keys"
        )
    return keys_of_files(InputColumns(key=KEY_COLUMN), [path], column_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsRows(RowRange):
    """One shard."""

    shards: MdsShards
    """Pickles as its index."""
    number: int
    """The shard's, in the index."""

    def _read(self) -> Iterator[RawRows]:
        length = self.columns.length
        assert length is not None  # the reader chose one
        is_lengths = self.shards.columns[length] in INTEGERS
        lengths = (self.shards.shard_integers if is_lengths else self.shards.shard_lengths)(self.number, length)
        ids, groups = (
            None if name is None else self.shards.shard_integers(self.number, name) for name in self.columns.integers
        )
        amounts = [self.shards.shard_integers(self.number, name) for name in self.columns.amounts]
        resources = np.stack([as_amounts(each) for each in amounts], axis=1) if amounts else None
        yield RawRows(lengths, ids=ids, groups=groups, resources=resources)


class MdsReader(WholeFiles):
    """See the top of the file."""

    kind = "MDS"
    takes = "one folder of MDS shards with its index.json; a column of lengths or of tokens"
    is_alone = True
    suffixes = (INDEX,)

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        shown = without_secrets(path)
        is_one = shown != path  # what signs a URL is for one object, not for those below it
        return os.path.basename(shown) == INDEX or (not is_one and is_file(os.path.join(path, INDEX)))

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return super().files(source if os.path.basename(source) == INDEX else os.path.join(source, INDEX))

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return [str(path) for index in paths for path, _ in MdsShards(index).shards]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        (index,) = paths
        shards = MdsShards(index)
        chosen = _chosen(shards, columns)
        ranges: list[RowRange] = []
        files = [InputFile(path=index, stamp=FileStamp.of(index), num_rows=0)]
        first_index = 0
        stamps = for_each([path for path, _ in shards.shards], FileStamp.of)
        for number, ((path, num_rows), stamp) in enumerate(zip(shards.shards, stamps, strict=True)):
            file = InputFile(path=str(path), stamp=stamp, num_rows=num_rows)
            files.append(file)
            if num_rows:
                ranges.append(
                    MdsRows(
                        path=file.path,
                        stamp=file.stamp,
                        shards=shards,
                        number=number,
                        first_row=0,
                        first_index=first_index,
                        num_rows=num_rows,
                        columns=chosen,
                    )
                )
            first_index += num_rows
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=chosen)


def _chosen(shards: MdsShards, columns: InputColumns) -> InputColumns:
    where = shards.where
    there = listed(f"{name!r} ({encoding})" for name, encoding in shards.columns.items())
    for name in columns.names:
        if name not in shards.columns:
            raise ValueError(f"{where} has no column {name!r}; its columns are: {there}")
    tokens = [name for name in shards.columns if _is_tokens(shards.columns[name])]
    numbers = [name for name, encoding in shards.columns.items() if encoding in INTEGERS]
    length = columns.length or evident_column(tokens) or evident_lengths(tokens, numbers)
    if length is None:
        raise ValueError(
            f"{where}: which column holds the tokens is not evident; "
            + parameter("length_column")
            + f" must name one, of lengths or of tokens. Its columns are: {there}"
        )
    if shards.columns[length] not in INTEGERS and not _is_tokens(shards.columns[length]):
        raise ValueError(
            f"{where}: column {length!r} is encoded as {shards.columns[length]!r}, but integers (lengths in tokens) or "
            "arrays or lists of integers (the tokens) are needed"
        )
    integers = [
        *zip(("ids", "groups"), columns.integers, strict=True),
        *(("resources", name) for name in columns.amounts),
    ]
    for what, column in integers:
        if column is not None and shards.columns[column] not in INTEGERS:
            raise ValueError(
                f"{where}: column {column!r} is encoded as {shards.columns[column]!r}, but {what} are integers"
            )
    return replace(columns, length=length)


def _is_tokens(encoding: str) -> bool:
    if encoding == "json":
        return True
    found = array_type(encoding)
    return (
        found is not None and (found[0] is None or found[0].kind in "iu") and (found[1] is None or len(found[1]) == 1)
    )
