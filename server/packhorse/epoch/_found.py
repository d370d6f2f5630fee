"""Bins that were found and not made yet: what a source made of sources needs, to have them made where they belong.

Owns `Found`, and how bins of several parts become one answer; leaves finding and making to the sources.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins, PoolArray
from packhorse.epoch.source import Source

Columns = Mapping[str, NDArray[Any]]
"""What bins have for every sequence beside its id and length, by the names of `Bins`: [S] each."""

Fill = Callable[[NDArray[np.int64], PoolArray, NDArray[np.int32], Columns], None]
"""Writes bins into arrays of ids, lengths and columns, from where each bin begins: int64 [N]."""

_WITHOUT = {"first_tokens": 0, "group_ids": -1, "rows": 0}
"""Columns, and what stands there for bins that lack them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Found:
    """N bins of a source, of which all is known but their sequences."""

    sizes: NDArray[np.int64]
    """Number of sequences in every bin: int64 [N]."""
    fill: Fill
    """Makes them."""
    ids_dtype: "np.dtype[Any]"
    """Of their ids."""
    columns: "Mapping[str, np.dtype[Any]]"
    """The columns that they have."""
    dataset_ids: NDArray[np.int32] | None = None
    """As in `Bins`."""
    templates: NDArray[np.int64] | None = None
    """As in `Bins`."""

    @classmethod
    def of_bins(cls, bins: Bins) -> "Found":
        """Returns bins that are made already; they are copied."""
        columns = {name: column for name in _WITHOUT if (column := getattr(bins, name)) is not None}

        def fill(begins: NDArray[np.int64], ids: PoolArray, lengths: NDArray[np.int32], out: Columns) -> None:
            _scatter(bins.ids, bins.bin_ends, begins, ids)
            _scatter(bins.lengths, bins.bin_ends, begins, lengths)
            for name, column in columns.items():
                _scatter(column, bins.bin_ends, begins, out[name])

        return cls(
            sizes=bins.sizes(),
            fill=fill,
            ids_dtype=bins.ids.dtype,
            columns={name: column.dtype for name, column in columns.items()},
            dataset_ids=bins.dataset_ids,
            templates=bins.templates,
        )


def found_in(source: Source, positions: ArrayLike) -> Found:
    """Returns the bins of a source at some positions; sources that have no `find` make them at once.

    Args:
        source: an epoch.
        positions: int [N], each in [0, num_bins).
    """
    find: Callable[[ArrayLike], Found] | None = getattr(source, "find", None)
    return Found.of_bins(source.bins(positions)) if find is None else find(positions)


def made(parts: Sequence[Found], order: NDArray[np.int64] | None, positions: NDArray[np.int64]) -> Bins:
    """Returns the bins of all parts.

    Args:
        parts: at least one. Where some have a column, the bins of the others begin at token 0, are of no group, or of
            one row.
        order: where the bins of all parts, one part after the other, stand among the N of all: int64 [N]. None: in that
            order.
        positions: of all bins: int64 [N].
    """
    sizes = _ordered([part.sizes for part in parts], order)
    dataset_ids = templates = None
    if any(part.dataset_ids is not None for part in parts):
        dataset_ids = _ordered([_or_all(part.dataset_ids, 0, part) for part in parts], order)
    if any(part.templates is not None for part in parts):
        templates = _ordered([_or_all(part.templates, -1, part) for part in parts], order)
    bin_ends = np.cumsum(sizes)
    begins = bin_ends - sizes
    total = int(bin_ends[-1]) if len(positions) else 0
    ids = np.empty(total, dtype=np.result_type(*(part.ids_dtype for part in parts)))
    lengths = np.empty(total, dtype=np.int32)
    columns = {}
    for name, without in _WITHOUT.items():
        dtypes = [part.columns[name] for part in parts if name in part.columns]
        if dtypes:
            columns[name] = np.full(total, without, dtype=np.result_type(*dtypes))
    ordered_begins = begins if order is None else begins[order]
    first = 0
    for part in parts:
        part.fill(ordered_begins[first : first + len(part.sizes)], ids, lengths, columns)
        first += len(part.sizes)
    return Bins(
        ids=ids,
        lengths=lengths,
        bin_ends=bin_ends,
        positions=positions,
        dataset_ids=dataset_ids,
        templates=templates,
        **columns,
    )


def _ordered(values: Sequence[NDArray[Any]], order: NDArray[np.int64] | None) -> NDArray[Any]:
    """Returns what the parts have, where their bins stand."""
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    if order is None:
        return whole
    ordered = np.empty_like(whole)
    ordered[order] = whole
    return ordered


def _or_all(values: NDArray[Any] | None, value: int, part: Found) -> NDArray[Any]:
    return np.full(len(part.sizes), value) if values is None else values


@numba.njit(nogil=True, cache=True)
def _scatter(values: Any, ends: Any, begins: Any, values_out: Any) -> None:
    """Copies what belongs to each bin to where it begins among others."""
    start = np.uint64(0)  # unsigned, so that no index is checked for being below 0
    for b in range(len(ends)):
        to, end = np.uint64(begins[b]), np.uint64(ends[b])
        while start < end:
            values_out[to] = values[start]
            start += np.uint64(1)
            to += np.uint64(1)
