"""The index of a folder of MDS shards (version 2): which shards there are, and where a column is in a sequence.

`index.json`: {version 2, shards: [{format "mds", column_names, column_encodings, column_sizes, raw_data {basename,
bytes}, zip_data, samples, …}]}.
"""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.files import open_binary
from packhorse.formats.object_store import is_url, without_secrets

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, as the index tells of it."""

    path: Path | str
    """A str is a URL."""
    where: str
    """The path, as messages show it."""
    size_bytes: int
    num_sequences: int


class ColumnLayout(NamedTuple):
    """Where a column is in a sequence."""

    fixed_bytes_before: int
    variable_columns_before: int
    size_bytes: int | None
    """None where each sequence says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsIndex:
    """What the index of a folder says."""

    folder: Path | str
    """A str is a URL."""
    columns: dict[str, str]
    """Name -> encoding, in the order of a sequence's bytes."""
    layouts: dict[str, ColumnLayout]
    """Name -> where the column is."""
    shards: list[Shard]

    @property
    def path(self) -> Path | str:
        """The index itself."""
        return _below(self.folder, INDEX)

    @property
    def num_sizes(self) -> int:
        """Sizes that stand before each sequence."""
        return sum(layout.size_bytes is None for layout in self.layouts.values())

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "MdsIndex":
        """Reads the index; O(shards).

        Args:
            path: the folder, or its `index.json`; or the URL of one.

        Raises:
            FileNotFoundError: the index or a shard is missing.
            ValueError: the index is not valid or of another version, shards differ in their columns, or one is there
                only compressed.
        """
        folder = _folder_of(path)
        index_path = without_secrets(str(_below(folder, INDEX)))
        entries = _entries(_below(folder, INDEX))
        names, encodings, sizes = (entries[0][f"column_{what}"] for what in ("names", "encodings", "sizes"))
        if len(set(names)) != len(names) or not len(names) == len(encodings) == len(sizes):
            raise ValueError(f"{index_path}: columns, encodings and sizes do not fit each other")
        shards = []
        for number, entry in enumerate(entries):
            if [entry[f"column_{what}"] for what in ("names", "encodings", "sizes")] != [names, encodings, sizes]:
                raise ValueError(f"{index_path}: shard {number} has other columns than shard 0")
            shards.append(_shard(folder, entry))
        columns = dict(zip(names, encodings, strict=True))
        return cls(folder=folder, columns=columns, layouts=_layouts(names, sizes), shards=shards)


def _folder_of(path: str | os.PathLike[str]) -> Path | str:
    if is_url(path):
        return path.removesuffix(INDEX).rstrip("/")
    given = Path(path)
    return given.parent if given.name == INDEX else given


def _below(folder: Path | str, name: str) -> Path | str:
    return f"{folder}/{name}" if isinstance(folder, str) else folder / name


def _entries(path: Path | str) -> list[dict[str, Any]]:
    """The shards of an index, each an MDS shard."""
    where = without_secrets(str(path))
    try:
        with open_binary(str(path)) as file:
            index = json.loads(file.read().decode())
        version, entries = index["version"], list(index["shards"])
        formats = {entry["format"] for entry in entries}
        if version == 2 and formats == {"mds"}:
            for entry in entries:
                entry["column_names"], entry["column_encodings"], entry["column_sizes"], entry["raw_data"]["basename"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is no index of MDS shards: {error!r}") from None
    if version != 2:
        raise ValueError(f"{where} has version {version}; only version 2 of MDS is known")
    if formats != {"mds"}:
        found = ", ".join(sorted(map(str, formats))) or "none"
        raise ValueError(f"{where} must name shards of format mds; found: {found}")
    return entries


def _layouts(names: list[str], sizes: list[int | None]) -> dict[str, ColumnLayout]:
    layouts = {}
    fixed_bytes = variable_columns = 0
    for name, size in zip(names, sizes, strict=True):
        layouts[name] = ColumnLayout(fixed_bytes, variable_columns, size or None)
        fixed_bytes += size or 0
        variable_columns += not size
    return layouts


def _shard(folder: Path | str, entry: dict[str, Any]) -> Shard:
    raw = entry["raw_data"]
    path = _below(folder, raw["basename"])
    if isinstance(folder, Path) and isinstance(path, Path) and not path.exists():
        compressed = entry.get("zip_data")
        if compressed and (folder / compressed["basename"]).exists():
            raise ValueError(
                f"{path} is there only compressed, as {compressed['basename']}, and a map cannot be made of that; "
                "decompress the shards beside it (streaming keeps both with keep_zip=True), or write them without "
                "compression"
            )
        raise FileNotFoundError(f"{path} is missing, but {INDEX} names it")
    return Shard(path, without_secrets(str(path)), int(raw["bytes"]), int(entry["samples"]))


INTEGERS: dict[str, np.dtype[Any]] = {
    "int": np.dtype("<i8"),
    **{name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""Encodings of one integer -> its type."""

_ARRAY_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""Code before the values of an array -> their type."""


@cache
def array_type(encoding: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None] | None:
    """Reads the name of an array's encoding: `ndarray`, `ndarray:uint16` or `ndarray:uint16:2048`.

    Returns:
        The type of its values and its shape, each None where every array says; None for other encodings.

    Raises:
        ValueError: the type or the shape is none.
    """
    name, *details = encoding.split(":")
    if name != "ndarray":
        return None
    try:
        if len(details) > 2 or (details and details[0] not in _ARRAY_CODES.values()):
            raise ValueError
        shape = tuple(int(extent) for extent in details[1].split(",")) if len(details) == 2 else None
    except ValueError:
        raise ValueError(f"{encoding!r} is no MDS encoding that is known") from None
    return np.dtype(details[0]).newbyteorder("<") if details else None, shape


def read_array(cell: memoryview, encoding: str) -> NDArray[Any]:
    """Decodes one array, as a view.

    Args:
        cell: the bytes of an `ndarray` column of one sequence.
        encoding: of the column.

    Raises:
        ValueError: the bytes are not such an array.
    """
    found = array_type(encoding)
    assert found is not None
    dtype, shape = found
    at = 0
    try:
        if dtype is None:
            dtype = np.dtype(_ARRAY_CODES[cell[0]]).newbyteorder("<")
            at = 1
        if shape is None:
            axes, log_size = divmod(cell[at], 4)
            extents = np.frombuffer(cell, f"<u{1 << log_size}", axes, at + 1)
            shape = tuple(extents.tolist())
            at += 1 + axes * (1 << log_size)
        return np.frombuffer(cell[at:], dtype).reshape(shape)
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"{len(cell)} bytes are no array of encoding {encoding!r}: the shard is corrupt") from None


def num_integers(cell: memoryview, encoding: str, where: str, row: int) -> int:
    """Returns the number of integers in a cell that must be decoded to know it; a ValueError where it is no list."""
    try:
        values = np.asarray(json.loads(bytes(cell))) if encoding == "json" else read_array(cell, encoding)
    except ValueError as error:
        raise ValueError(f"{where}: sequence {row}: {error}") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"{where}: sequence {row} holds {values.dtype} of shape {list(values.shape)}, no list of integers"
        )
    return len(values)
