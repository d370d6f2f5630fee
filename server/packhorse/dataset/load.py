"""Reading a prepared folder, or refusing it with what is wrong and where.

Owns every check between the files and the plan that is served from them; leaves seqpack's layout to `seqpack_layout`.
"""

import io
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.layout import (
    COUNTS,
    DATA_FILES,
    MANIFEST,
    OVER_LENGTH,
    POOLS,
    STARTS,
    TEMPLATES,
    parse_counts,
    parse_templates,
    sha256_of,
)
from packhorse.dataset.manifest import Manifest
from packhorse.dataset.write import dataset_digest, optional_files
from packhorse.epoch import PlanIndex, PoolArray
from packhorse.packing import Template

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """A prepared folder, checked and open."""

    path: Path
    """The folder."""
    manifest: Manifest
    """What it says of itself."""
    counts: Counter[int]
    """Length in tokens → number of sequences."""
    templates: Counter[Template]
    """Template → multiplicity."""
    pool: PoolArray
    """Ids of all lengths, ascending by (length, id, start), memory-mapped read-only: uint32 or int64 [n_sequences]."""
    plan: PlanIndex
    """The plan laid out for random access."""
    starts: PoolArray | None = None
    """First token of each pool entry in its sequence, mapped likewise: uint32 or int64 [n_sequences]; None: all 0."""

    @cached_property
    def name(self) -> str:
        """The folder's name, by which the dataset is served."""
        return self.path.name

    def check_pool(self) -> None:
        """Compares every array file with its checksum, reading it whole; PreparedDatasetError where one differs."""
        for name in _array_files(self.manifest):
            _check_sum(self.path / name, self.manifest)

    def over_length(self) -> NDArray[np.int64]:
        """Returns (id, length in tokens) of every sequence that was too long, ascending: int64 [n, 2]."""
        num_over = self.manifest.over_length.sequences
        if not num_over:
            return np.empty((0, 2), dtype=np.int64)
        return _map_array(self.path / OVER_LENGTH, "int64", (num_over, 2))


def open_prepared(path: Path | str, *, check_pool: bool = True) -> PreparedDataset:
    """Opens and checks a prepared folder.

    Args:
        path: the folder.
        check_pool: whether the array files are read as a whole to compare their checksums. Without, only their headers
            and sizes are checked, at a cost that does not grow with the number of sequences; `check_pool()` can follow.

    Raises:
        PreparedDatasetError: a file is missing, truncated, altered, or inconsistent with the others.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise PreparedDatasetError(f"{folder} is not a folder; `packhorse prepare` writes one")
    if not (folder / MANIFEST).exists() and (folder / POOLS.removesuffix(".npy")).is_dir():
        raise PreparedDatasetError(f"{folder.name} has no {MANIFEST}; prepare it again")
    manifest = Manifest.parse(_read(folder / MANIFEST), _named(folder / MANIFEST))
    if set(manifest.checksums) != {*DATA_FILES, *optional_files(manifest.start_dtype, manifest.over_length)}:
        raise PreparedDatasetError(f"{_named(folder / MANIFEST)} lists {sorted(manifest.checksums)}")
    for name in (COUNTS, TEMPLATES):
        _check_sum(folder / name, manifest)
    counts = _parsed(folder / COUNTS, parse_counts)
    templates = _parsed(folder / TEMPLATES, parse_templates)
    pool = _map_array(folder / POOLS, manifest.id_dtype, (manifest.n_sequences,))
    starts = None
    if manifest.start_dtype:
        starts = _map_array(folder / STARTS, manifest.start_dtype, (manifest.n_sequences,))
    if manifest.over_length.sequences:
        _map_array(folder / OVER_LENGTH, "int64", (manifest.over_length.sequences, 2))
    if check_pool:
        for name in _array_files(manifest):
            _check_sum(folder / name, manifest)
    try:
        plan = PlanIndex.build(templates, counts, manifest.max_seq_len)
    except ValueError as error:
        raise PreparedDatasetError(f"{_named(folder / TEMPLATES)} does not fit {COUNTS}: {error}") from None
    digest = dataset_digest(
        counts, templates, manifest.options, manifest.checksums[POOLS], manifest.checksums.get(STARTS)
    )
    for what, stated, actual in (
        ("n_sequences", manifest.n_sequences, plan.num_sequences),
        ("n_bins", manifest.n_bins, plan.num_bins),
        ("total_tokens", manifest.total_tokens, sum(length * count for length, count in counts.items())),
        ("total_capacity", manifest.total_capacity, plan.num_bins * manifest.max_seq_len),
        ("distinct_lengths", manifest.distinct_lengths, len(counts)),
        ("distinct_templates", manifest.distinct_templates, len(templates)),
        ("digest", manifest.digest, digest),
    ):
        if stated != actual:
            raise PreparedDatasetError(
                f"{_named(folder / MANIFEST)} states {what} {stated}, but the files beside it give {actual}"
            )
    return PreparedDataset(folder, manifest, counts, templates, pool, plan, starts)


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PreparedDatasetError(f"{_named(path)} is missing; prepare the dataset again") from None


def _check_sum(path: Path, manifest: Manifest) -> None:
    if not path.exists():
        raise PreparedDatasetError(f"{_named(path)} is missing; prepare the dataset again")
    if sha256_of(path) != manifest.checksums[path.name]:
        raise PreparedDatasetError(
            f"{_named(path)} does not match its checksum in {MANIFEST}: it was truncated or altered; restore it from a "
            "copy or prepare the dataset again"
        )


def _parsed(path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    try:
        return parse(_read(path))
    except ValueError as error:
        raise PreparedDatasetError(f"{_named(path)} cannot be read: {error}") from None


def _array_files(manifest: Manifest) -> list[str]:
    return [POOLS, *optional_files(manifest.start_dtype, manifest.over_length)]


def _map_array(path: Path, dtype_name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Maps an array file, whose header can only be the one that the manifest implies; NumPy never parses another."""
    dtype = np.dtype(dtype_name).newbyteorder("<")
    expected = io.BytesIO()
    np.lib.format.write_array_header_1_0(expected, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    header = expected.getvalue()
    try:
        with path.open("rb") as file:
            begins = file.read(len(header))
            num_bytes = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        raise PreparedDatasetError(f"{_named(path)} is missing; prepare the dataset again") from None
    wanted_bytes = len(header) + math.prod(shape) * dtype.itemsize
    if begins != header or num_bytes != wanted_bytes:
        raise PreparedDatasetError(
            f"{_named(path)} was truncated or altered: it is no array of {dtype_name} {list(shape)}, as {MANIFEST} "
            f"states, in {wanted_bytes} bytes; it has {num_bytes} bytes"
        )
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=len(header), shape=shape))
