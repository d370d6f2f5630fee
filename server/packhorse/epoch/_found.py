"""Bins that were found and not made yet: what a source made of sources needs, to have them made where they belong.

Owns `Outline` and `Found`, and how bins of several parts become one answer; leaves finding and making to the sources.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.bins import Bins, PoolArray
from packhorse.epoch.sharing import all_of
from packhorse.epoch.source import Source

Columns = Mapping[str, NDArray[Any]]
"""What bins have for every sequence beside its id and length, by the names of `Bins`: [S] each."""

Fill = Callable[[NDArray[np.int64], PoolArray, NDArray[np.int32], Columns], None]
"""Writes bins into arrays of ids, lengths and columns, from where each of all bins begins: int64 [N]."""

_WITHOUT = {"first_tokens": 0, "group_ids": -1, "rows": 0}
"""Columns, and what stands there for bins that lack them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outline:
    """What is known of N bins before they are made; sources that have some of them fill in theirs."""

    sizes: NDArray[np.int64]
    """Number of sequences in every bin: int64 [N]."""
    templates: NDArray[np.int64]
    """As in `Bins`, -1 at first."""
    dataset_ids: NDArray[np.int32] | None = None
    """As in `Bins`; of a bin whose source is itself a mixture, that source's first dataset at first."""

    @classmethod
    def of(cls, num_bins: int, dataset_ids: NDArray[np.int32] | None = None) -> "Outline":
        """Returns an outline of so many bins that nobody has filled in."""
        return cls(
            sizes=np.zeros(num_bins, dtype=np.int64),
            templates=np.full(num_bins, -1, dtype=np.int64),
            dataset_ids=dataset_ids,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Found:
    """Bins of one source, which are in an outline, and can be made."""

    fill: Fill
    """Makes them."""
    ids_dtype: "np.dtype[Any]"
    """Of their ids."""
    columns: "Mapping[str, np.dtype[Any]]"
    """The columns that they have."""
    have_templates: bool
    """Whether any is of one."""

    @classmethod
    def together(cls, parts: "Sequence[Found]") -> "Found":
        """Returns the bins of all parts, of which there is at least one.

        Where some have a column, the bins of the others begin at token 0, are of no group, or of one row.
        """
        columns = {}
        for name in _WITHOUT:
            dtypes = {part.columns[name] for part in parts if name in part.columns}
            if dtypes:
                columns[name] = np.result_type(*dtypes)
        return cls(
            fill=partial(_fill_parts, parts),
            ids_dtype=np.result_type(*{part.ids_dtype for part in parts}),
            columns=columns,
            have_templates=any(part.have_templates for part in parts),
        )


def find_in(
    source: Source,
    positions: NDArray[np.int64],
    where: NDArray[np.int64],
    outline: Outline,
    first_template: int | None,
) -> Found:
    """Finds bins of a source; one that has no `find` makes them at once, and they are copied.

    Args:
        source: an epoch.
        positions: int64 [n], each in [0, num_bins).
        where: which bins of the outline these are: int64 [n].
        outline: gets what is known of them.
        first_template: where the numbers of the source's templates begin; None where they are not told apart.

    Raises:
        ValueError: the source is a mixture, and the outline has no datasets.
    """
    if first_template is None:
        untold = replace(outline, templates=np.empty_like(outline.templates))
        return replace(find_in(source, positions, where, untold, 0), have_templates=False)
    find: Callable[..., Found] | None = getattr(source, "find", None)
    if find is not None:
        return find(positions, where, outline, first_template)
    bins = source.bins(positions)
    outline.sizes[where] = bins.sizes()
    if bins.templates is not None:
        outline.templates[where] = np.where(bins.templates < 0, -1, bins.templates + first_template)
    if bins.dataset_ids is not None:
        if outline.dataset_ids is None:
            raise ValueError("bins of a mixture may be of several datasets: join its components, and mix them then")
        outline.dataset_ids[where] += bins.dataset_ids
    return Found(
        fill=partial(_copy, bins, where),
        ids_dtype=bins.ids.dtype,
        columns={name: column.dtype for name in _WITHOUT if (column := getattr(bins, name)) is not None},
        have_templates=bins.templates is not None,
    )


def _fill_parts(
    parts: Sequence[Found], begins: NDArray[np.int64], ids: PoolArray, lengths: NDArray[np.int32], columns: Columns
) -> None:
    all_of([partial(part.fill, begins, ids, lengths, columns) for part in parts], len(begins))


def _copy(
    bins: Bins,
    where: NDArray[np.int64],
    begins: NDArray[np.int64],
    ids: PoolArray,
    lengths: NDArray[np.int32],
    columns: Columns,
) -> None:
    """Puts bins that are made already where they stand among others."""
    own_begins = begins[where]
    _scatter(bins.ids, bins.bin_ends, own_begins, ids)
    _scatter(bins.lengths, bins.bin_ends, own_begins, lengths)
    for name, column in columns.items():
        if (own := getattr(bins, name)) is not None:
            _scatter(own, bins.bin_ends, own_begins, column)


def made(outline: Outline, found: Found, positions: NDArray[np.int64]) -> Bins:
    """Returns the bins of an outline.

    Args:
        outline: of N bins, filled in.
        found: these bins.
        positions: theirs: int64 [N].
    """
    bin_ends = np.cumsum(outline.sizes)
    total = int(bin_ends[-1]) if len(positions) else 0
    ids = np.empty(total, dtype=found.ids_dtype)
    lengths = np.empty(total, dtype=np.int32)
    columns = {name: np.full(total, _WITHOUT[name], dtype=dtype) for name, dtype in found.columns.items()}
    found.fill(bin_ends - outline.sizes, ids, lengths, columns)
    return Bins(
        ids=ids,
        lengths=lengths,
        bin_ends=bin_ends,
        positions=positions,
        dataset_ids=outline.dataset_ids,
        templates=outline.templates if found.have_templates else None,
        **columns,
    )


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
