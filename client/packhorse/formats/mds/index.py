"""The index of a folder of MDS shards: which shards there are, and where each column is in a sequence.

`index.json`: {version 2, shards: [{format "mds", column_names, column_encodings, column_sizes, raw_data {basename,
bytes}, zip_data, samples, …}]}. A sequence: a u32 size for each column that has no fixed one, then its columns. Leaves
the bytes of shards to `shards`. Compressed shards are refused.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.files import open_binary
from packhorse.formats.object_store import is_url, without_secrets

INDEX = "index.json"
"""Name of the index in its folder."""

_SIZE_BYTES = 4
"""Bytes that the size of a column without a fixed one takes at a sequence's beginning."""

_NOT_AN_INDEX = (KeyError, TypeError, ValueError, RecursionError)
"""What reading an index raises if it is no JSON (RecursionError if it is nested too deeply), or lacks a fact."""

_Bytes = TypeVar("_Bytes", int, NDArray[np.int64])
"""Byte offsets or sizes: of one sequence, or of all sequences of a shard."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, as the index describes it."""

    path: Path | str
    """Path of the shard; a str is a URL."""
    where: str
    """The path, as messages show it."""
    size_bytes: int
    num_sequences: int


class ColumnLayout(NamedTuple):
    """Where a column is in a sequence."""

    fixed_bytes_before: int
    """Bytes before the column that every sequence has: all sizes, and the columns of a fixed size before this one."""
    variable_columns_before: int
    """Number of the columns without a fixed size before this one; their sizes are in each sequence."""
    size_bytes: int | None
    """The column's fixed size; None if it has none."""

    def cell(self, sequence_begin: _Bytes, size_at: Callable[[_Bytes], _Bytes]) -> tuple[_Bytes, _Bytes | int]:
        """Returns where the column's cell begins, and its size; of one sequence or, with arrays, of several.

        Args:
            sequence_begin: the offset at which the sequence begins.
            size_at: reads a size at an offset.
        """
        begin = sequence_begin + self.fixed_bytes_before
        for number in range(self.variable_columns_before):
            begin = begin + size_at(sequence_begin + _SIZE_BYTES * number)
        if self.size_bytes is not None:
            return begin, self.size_bytes
        return begin, size_at(sequence_begin + _SIZE_BYTES * self.variable_columns_before)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """What an index says of its shards, all of which have the same columns."""

    columns: dict[str, str]
    """Name -> encoding, in the order of a sequence's bytes."""
    layouts: dict[str, ColumnLayout]
    """Name of a column -> where it is in a sequence."""
    shards: list[Shard]
    """The shards, in the order that numbers sequences."""


def read_index(folder: Path | str) -> ShardIndex:
    """Reads the index of a folder; a str is a URL.

    Raises:
        FileNotFoundError: the index or a shard is missing.
        ValueError: the index is not valid or of another version, shards differ in their columns, or a shard is there
            only in compressed form.
    """
    path = below(folder, INDEX)
    where = without_secrets(str(path))
    entries = _entries(path)
    columns = entries[0].columns
    names, encodings, sizes = columns
    if len(set(names)) != len(names) or not len(names) == len(encodings) == len(sizes):
        raise ValueError(f"{where}: columns, encodings and sizes do not fit each other")
    for number, entry in enumerate(entries):
        if entry.columns != columns:
            raise ValueError(f"{where}: shard {number} has other columns than shard 0")
    return ShardIndex(
        columns=dict(zip(names, encodings, strict=True)),
        layouts=_layouts(names, sizes),
        shards=[_shard(folder, entry) for entry in entries],
    )


def folder_of(path: str | os.PathLike[str]) -> Path | str:
    """Returns the folder for a folder or its index; a str for a URL."""
    if is_url(path):
        return path.removesuffix(INDEX).rstrip("/")
    folder_or_index = Path(path)
    return folder_or_index.parent if folder_or_index.name == INDEX else folder_or_index


def below(folder: Path | str, name: str) -> Path | str:
    """Returns the path or URL of a file in a folder."""
    return f"{folder}/{name}" if isinstance(folder, str) else folder / name


class _Columns(NamedTuple):
    """The columns of a shard, as the index describes them."""

    names: list[str]
    encodings: list[str]
    sizes: list[int | None]
    """The fixed size of each column in bytes; None or 0 if it has none."""


class _Entry(NamedTuple):
    """What the index says of one shard."""

    columns: _Columns
    name: str
    """Name of the shard's file in the folder."""
    size_bytes: int
    num_sequences: int
    compressed: Any
    """The index's object about the compressed file, with its `basename`; None if there is none."""


def _entries(path: Path | str) -> list[_Entry]:
    """Returns the entries of an index, one for each shard; a ValueError if it is not an index of MDS, version 2."""
    where = without_secrets(str(path))

    def not_an_index(error: Exception) -> ValueError:
        return ValueError(f"{where} is not an index of MDS shards: {error!r}")

    try:
        with open_binary(str(path)) as file:
            index = json.loads(file.read().decode())
        version, shards = index["version"], list(index["shards"])
        formats = {shard["format"] for shard in shards}
    except _NOT_AN_INDEX as error:
        raise not_an_index(error) from None
    if version != 2:
        raise ValueError(f"{where} has version {version}; only version 2 of MDS can be read")
    if formats != {"mds"}:
        found = ", ".join(sorted(map(str, formats))) or "none"
        raise ValueError(f"{where} must name shards of format mds; found: {found}")
    try:
        return [_entry(shard) for shard in shards]
    except _NOT_AN_INDEX as error:
        raise not_an_index(error) from None


def _entry(shard: dict[str, Any]) -> _Entry:
    """Reads the index's object about a shard; a KeyError, TypeError or ValueError if it lacks a fact."""
    raw = shard["raw_data"]
    return _Entry(
        columns=_Columns(
            names=list(shard["column_names"]),
            encodings=list(shard["column_encodings"]),
            sizes=list(shard["column_sizes"]),
        ),
        name=os.fspath(raw["basename"]),
        size_bytes=int(raw["bytes"]),
        num_sequences=int(shard["samples"]),
        compressed=shard.get("zip_data"),
    )


def _layouts(names: list[str], sizes: list[int | None]) -> dict[str, ColumnLayout]:
    """Returns where each column is in a sequence, by name; a column's size is None or 0 if it is not fixed."""
    layouts = {}
    fixed_bytes = _SIZE_BYTES * sum(not size for size in sizes)
    variable_columns = 0
    for name, size in zip(names, sizes, strict=True):
        layouts[name] = ColumnLayout(
            fixed_bytes_before=fixed_bytes, variable_columns_before=variable_columns, size_bytes=size or None
        )
        fixed_bytes += size or 0
        variable_columns += not size
    return layouts


def _shard(folder: Path | str, entry: _Entry) -> Shard:
    """Returns the shard of an index's entry; raises if it is missing from the disk, or there only compressed.

    In a store it is not looked for here; reading it finds out.
    """
    path = below(folder, entry.name)
    if isinstance(folder, Path) and isinstance(path, Path) and not path.exists():
        compressed = entry.compressed
        if compressed and (folder / compressed["basename"]).exists():
            raise ValueError(
                f"{path} is only there compressed, as {compressed['basename']}, and cannot be mapped; "
                "decompress the shards beside it (streaming keeps both with keep_zip=True), or write them without "
                "compression"
            )
        raise FileNotFoundError(f"{path} is missing, but {INDEX} names it")
    return Shard(path, without_secrets(str(path)), entry.size_bytes, entry.num_sequences)
