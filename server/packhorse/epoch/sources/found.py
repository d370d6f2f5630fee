"""Bins that were found and not made yet: what a source made of sources needs, to have them made where they belong.

Owns `Outline` and `Found`, and how bins of several parts become one answer; leaves finding and making to the sources.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.epoch.bins import Bins, PoolArray
from packhorse.epoch.kernels.instructions import WIDE_LANES, copy_lanes
from packhorse.epoch.sources.source import Source

Columns = Mapping[str, NDArray[Any]]
"""What bins have for every sequence beside its id and length, by the names of `Bins`: [S] each."""

Fill = Callable[[NDArray[np.int64], PoolArray, NDArray[np.int32], Columns], int]
"""Writes N bins, one after the other, into arrays of ids, lengths and columns, given where each begins there and where
the last one ends: int64 [N + 1]. Returns how many tokens they have."""

_WITHOUT = {"first_tokens": 0, "group_ids": -1, "rows": 0}
"""Columns, and what stands there for bins that lack them."""

_ONE, _WIDE = np.uint64(1), np.uint64(WIDE_LANES)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outline:
    """What is known of N bins before they are made; sources that have some of them fill in theirs."""

    sizes: NDArray[np.int64]
    """Number of sequences in every bin: int64 [N]."""
    templates: NDArray[np.int64]
    """Number of every bin's template, -1 where it is of none: int64 [N]."""
    component_ids: NDArray[np.int32] | None = None
    """As in `Bins`; of a bin whose source is itself a mixture, that source's first dataset at first."""

    @classmethod
    def of(cls, num_bins: int, component_ids: NDArray[np.int32] | None = None) -> "Outline":
        """Returns an outline of so many bins that nobody has filled in."""
        sizes, templates = np.empty((2, num_bins), dtype=np.int64)
        return cls(sizes=sizes, templates=templates, component_ids=component_ids)

    def part(self, bins: slice) -> "Outline":
        """Returns the outline of some of the bins, to be filled in."""
        component_ids = None if self.component_ids is None else self.component_ids[bins]
        return Outline(sizes=self.sizes[bins], templates=self.templates[bins], component_ids=component_ids)

    def bounds(self) -> NDArray[np.int64]:
        """Returns where each bin begins, laid end to end, and where the last one ends: int64 [N + 1]."""
        bounds = np.zeros(len(self.sizes) + 1, dtype=np.int64)
        np.cumsum(self.sizes, out=bounds[1:])
        return bounds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Found:
    """Bins that are in an outline, and can be made."""

    fill: Fill
    """Makes them."""
    num_bins: int
    """How many."""
    ids_dtype: "np.dtype[Any]"
    """Of their ids."""
    columns: "Mapping[str, np.dtype[Any]]"
    """The columns that they have."""
    have_templates: bool
    """Whether any is of one."""

    @classmethod
    def together(cls, parts: "Sequence[Found]") -> "Found":
        """Returns the bins of all parts, one part after the other; there is at least one.

        Where some have a column, the bins of the others begin at token 0, are of no group, or of one row.
        """
        if len(parts) == 1:
            return parts[0]
        columns = {}
        for name in _WITHOUT:
            dtypes = {part.columns[name] for part in parts if name in part.columns}
            if dtypes:
                columns[name] = np.result_type(*dtypes)
        return cls(
            fill=partial(_fill_parts, parts),
            num_bins=sum(part.num_bins for part in parts),
            ids_dtype=np.result_type(*{part.ids_dtype for part in parts}),
            columns=columns,
            have_templates=any(part.have_templates for part in parts),
        )


def find_in(source: Source, positions: NDArray[np.int64], outline: Outline, first_template: int | None) -> Found:
    """Finds bins of a source; one that has no `find` makes them at once, and they are copied.

    Args:
        source: an epoch.
        positions: int64 [n], each in [0, num_bins).
        outline: of n bins; gets what is known of them.
        first_template: where the numbers of the source's templates begin; None where they are not told apart.

    Raises:
        ValueError: the source is a mixture, and the outline has no datasets.
    """
    if first_template is None:
        found = find_in(source, positions, outline, 0)
        outline.templates[:] = -1
        return replace(found, have_templates=False)
    find: Callable[..., Found] | None = getattr(source, "find", None)
    if find is not None:
        return find(positions, outline, first_template)
    bins = source.bins(positions)
    outline.sizes[:] = bins.sizes()
    outline.templates[:] = -1
    if bins.templates is not None:
        outline.templates[:] = np.where(bins.templates < 0, -1, bins.templates + first_template)
    if bins.component_ids is not None:
        if outline.component_ids is None:
            raise ValueError("bins of a mixture may be of several datasets: join its components, and mix them then")
        outline.component_ids[:] += bins.component_ids
    return Found(
        fill=partial(_copy, bins),
        num_bins=len(bins),
        ids_dtype=bins.ids.dtype,
        columns={name: column.dtype for name in _WITHOUT if (column := getattr(bins, name)) is not None},
        have_templates=bins.templates is not None,
    )


def rearranged(found: Found, outline: Outline, order: NDArray[np.int64], outline_out: Outline) -> Found:
    """Returns bins in another order.

    They are made as they were found, one after the other, and copied then: what is written in order stays in the cache
    until a line is full, and a copy takes less than writing bin by bin between others.

    Args:
        found: N bins.
        outline: theirs.
        order: which of them comes first, second, …: int64 [N].
        outline_out: gets what is known of them in this order.
    """
    bounds, begins = outline.bounds(), np.empty(len(order), dtype=np.int64)
    _rearrange(order, outline.templates, bounds, outline_out.sizes, outline_out.templates, begins)
    if outline.component_ids is not None and outline_out.component_ids is not None:
        outline.component_ids.take(order, out=outline_out.component_ids)
    return Found(
        fill=partial(_fill_rearranged, found, bounds, begins),
        num_bins=found.num_bins,
        ids_dtype=found.ids_dtype,
        columns=found.columns,
        have_templates=found.have_templates,
    )


def made(outline: Outline, found: Found, positions: NDArray[np.int64]) -> Bins:
    """Returns the bins of an outline.

    Args:
        outline: of N bins, filled in.
        found: these bins.
        positions: theirs: int64 [N].
    """
    bounds = outline.bounds()
    ids, lengths, columns = _room(int(bounds[-1]), found.ids_dtype, found.columns)
    num_tokens = found.fill(bounds, ids, lengths, columns)
    return Bins(
        ids=ids,
        lengths=lengths,
        bin_ends=bounds[1:],
        positions=positions,
        component_ids=outline.component_ids,
        templates=outline.templates if found.have_templates else None,
        known_tokens=num_tokens,
        **columns,
    )


def _room(
    num_sequences: int, ids_dtype: "np.dtype[Any]", dtypes: "Mapping[str, np.dtype[Any]]"
) -> tuple[PoolArray, NDArray[np.int32], dict[str, NDArray[Any]]]:
    """Returns arrays to make bins in."""
    columns = {name: np.full(num_sequences, _WITHOUT[name], dtype=dtype) for name, dtype in dtypes.items()}
    return np.empty(num_sequences, dtype=ids_dtype), np.empty(num_sequences, dtype=np.int32), columns


def _fill_parts(
    parts: Sequence[Found], bounds: NDArray[np.int64], ids: PoolArray, lengths: NDArray[np.int32], columns: Columns
) -> int:
    first = num_tokens = 0
    for part in parts:
        num_tokens += part.fill(bounds[first : first + part.num_bins + 1], ids, lengths, columns)
        first += part.num_bins
    return num_tokens


def _copy(bins: Bins, bounds: NDArray[np.int64], ids: PoolArray, lengths: NDArray[np.int32], columns: Columns) -> int:
    """Copies bins that are made already."""
    ours = slice(bounds[0], bounds[-1])
    ids[ours], lengths[ours] = bins.ids, bins.lengths
    for name, column in columns.items():
        if (own := getattr(bins, name)) is not None:
            column[ours] = own
    return bins.num_tokens()


def _fill_rearranged(
    found: Found,
    own_bounds: NDArray[np.int64],
    own_begins: NDArray[np.int64],
    bounds: NDArray[np.int64],
    ids: PoolArray,
    lengths: NDArray[np.int32],
    columns: Columns,
) -> int:
    """Makes bins in their own order, and copies each from where it begins there: int64 [N]."""
    names = found.columns.keys()
    dtypes = {name: columns[name].dtype for name in names}
    own_ids, own_lengths, own_columns = _room(int(own_bounds[-1]) + WIDE_LANES, ids.dtype, dtypes)
    num_tokens = found.fill(own_bounds, own_ids, own_lengths, own_columns)
    for own, out in ((own_ids, ids), (own_lengths, lengths), *((own_columns[name], columns[name]) for name in names)):
        _copy_bins(own, own_begins, bounds, out)
    return num_tokens


@kernel
def _rearrange(order: Any, templates: Any, bounds: Any, sizes_out: Any, templates_out: Any, begins_out: Any) -> None:
    """Writes what is known of bins, and where each begins, in another order."""
    for b in range(len(order)):
        which = np.uint64(order[b])
        begin = bounds[which]
        sizes_out[b], templates_out[b], begins_out[b] = bounds[which + _ONE] - begin, templates[which], begin


@kernel
def _copy_bins(values: Any, begins: Any, bounds: Any, values_out: Any) -> None:
    """Copies bins to where they belong, WIDE_LANES at a time: what is too many, the next bin overwrites.

    Args:
        values: of all sequences, and WIDE_LANES behind them.
        begins: where each bin begins in `values`: int64 [n].
        bounds: where each begins in `values_out`, and where the last one ends: int64 [n + 1].
        values_out: written between these bounds and nowhere else.
    """
    last = np.uint64(max(bounds[-1] - WIDE_LANES, 0))
    for b in range(len(begins)):
        source, at, end = np.uint64(begins[b]), np.uint64(bounds[b]), np.uint64(bounds[b + 1])
        while at < end and at < last:
            copy_lanes(values, source, values_out, at)
            source, at = source + _WIDE, at + _WIDE
        while at < end:
            values_out[at] = values[source]
            source, at = source + _ONE, at + _ONE
