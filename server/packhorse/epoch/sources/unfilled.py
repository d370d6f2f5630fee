"""Bins made in two steps: a source first finds them, and fills them later into arrays that others may share.

Once bins are found, their sizes and templates are known, as an `Outline`. So a mixture can find the bins of all
components first, and let each fill its part of the same arrays. Owns these two steps: `FindingSource`, and functions
that join and reorder bins that are found but not filled. Leaves the interface of every epoch to `source`.

Shape letters: N bins, S sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import kernel_or
from packhorse.epoch.bins import SEQUENCE_COLUMNS, Bins
from packhorse.epoch.sources.source import Source, checked_positions
from packhorse.epoch.vector_instructions import WIDE_LANES, copy_lanes

Columns = Mapping[str, NDArray[Any]]
"""Name of a field of `Bins` with a value for every sequence, such as ids or lengths → its array: [S]."""

Dtypes = Mapping[str, "np.dtype[Any]"]
"""Name of a column → its dtype."""

Fill = Callable[[NDArray[np.int64], Columns], int]
"""A function that writes N bins into columns, one after another, and returns their number of tokens. Its first argument
is the start of each bin in the columns, and the end of the last one: int64 [N + 1]."""

LENGTH_DTYPE = np.dtype(np.int32)
"""The dtype of the column of lengths."""

_ONE, _WIDE = np.uint64(1), np.uint64(WIDE_LANES)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outline:
    """What is known of N bins before they are filled: arrays that sources write when they find bins."""

    sizes: NDArray[np.int64]
    """Number of sequences in every bin: int64 [N]."""
    templates: NDArray[np.int64]
    """Number of every bin's template, -1 for a bin without: int64 [N]."""
    component_ids: NDArray[np.int32] | None = None
    """Each bin's component, as in `Bins`; None outside mixtures. A mixture first writes the number of its component's
    first dataset. A component that is a mixture itself then adds the number of its own dataset."""

    @classmethod
    def of(cls, num_bins: int, component_ids: NDArray[np.int32] | None = None) -> "Outline":
        """Returns an outline whose sizes and templates are not written yet."""
        sizes, templates = np.empty((2, num_bins), dtype=np.int64)
        return cls(sizes=sizes, templates=templates, component_ids=component_ids)

    def part(self, bins: slice) -> "Outline":
        """Returns the outline of a slice of the bins, as views: what is written there is written here."""
        component_ids = None if self.component_ids is None else self.component_ids[bins]
        return Outline(sizes=self.sizes[bins], templates=self.templates[bins], component_ids=component_ids)

    def bounds(self) -> NDArray[np.int64]:
        """Returns the start of each bin, if bins are laid end to end, and the end of the last one: int64 [N + 1]."""
        bounds = np.zeros(len(self.sizes) + 1, dtype=np.int64)
        np.cumsum(self.sizes, out=bounds[1:])
        return bounds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnfilledBins:
    """Bins that were found, so that their outline is written, but not filled yet."""

    fill: Fill
    """Fills the bins."""
    num_bins: int
    """Number of bins."""
    dtypes: Dtypes
    """Dtypes of the columns that the bins have."""
    have_templates: bool
    """Whether any bin has a template."""


class FindingSource(Source, Protocol):
    """A source whose bins can be filled into arrays that others share."""

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> UnfilledBins:
        """Finds the bins at the given positions.

        Args:
            positions: int64 [N], each in [0, num_bins); repeats allowed.
            outline: outline of N bins, which is written.
            first_template: number of the source's first template; a mixture numbers the templates of all components.
        """
        ...


def bins_at(source: FindingSource, positions: ArrayLike) -> Bins:
    """Finds and fills the bins at some positions. This is `Source.bins` of every source that has `find`."""
    wanted_positions = checked_positions(positions, source.num_bins)
    outline = Outline.of(len(wanted_positions))
    return filled(source.find(wanted_positions, outline), outline, wanted_positions)


def find_in(source: Source, positions: NDArray[np.int64], outline: Outline, first_template: int | None) -> UnfilledBins:
    """Finds bins of any source, as `FindingSource.find`.

    A source without `find` makes its bins here already, and filling copies them. If `first_template` is None, the bins
    get no templates.

    Raises:
        ValueError: the source is a mixture, and the outline has no components.
    """
    find: Callable[..., UnfilledBins] | None = getattr(source, "find", None)
    first_number = first_template or 0  # numbers of templates are overwritten at the end if it is None
    if find is not None:
        unfilled = find(positions, outline, first_number)
    else:
        bins = source.bins(positions)
        outline.sizes[:] = bins.sizes()
        outline.templates[:] = -1
        if bins.templates is not None:
            outline.templates[:] = np.where(bins.templates < 0, -1, bins.templates + first_number)
        if bins.component_ids is not None:
            if outline.component_ids is None:
                raise ValueError("a mixture's bins cannot be joined: join the bins of its components, then mix them")
            outline.component_ids[:] += bins.component_ids
        columns = {name: getattr(bins, name) for name in ("ids", "lengths", *SEQUENCE_COLUMNS)}
        unfilled = UnfilledBins(
            fill=partial(_fill_from_bins, bins),
            num_bins=len(bins),
            dtypes={name: column.dtype for name, column in columns.items() if column is not None},
            have_templates=bins.templates is not None,
        )
    if first_template is None:
        outline.templates[:] = -1
        return replace(unfilled, have_templates=False)
    return unfilled


def concatenated(parts: Sequence[UnfilledBins]) -> UnfilledBins:
    """Joins unfilled bins, one part after another; at least one part. Columns are joined as by `bins.joined`."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.dtypes)
    return UnfilledBins(
        fill=partial(_fill_parts, parts),
        num_bins=sum(part.num_bins for part in parts),
        dtypes={name: np.result_type(*{part.dtypes[name] for part in parts if name in part.dtypes}) for name in names},
        have_templates=any(part.have_templates for part in parts),
    )


def reordered(unfilled: UnfilledBins, outline: Outline, order: NDArray[np.int64], outline_out: Outline) -> UnfilledBins:
    """Returns unfilled bins in another order, and writes the outline of this order.

    When they are filled, they are first written in the order in which they were found, and then copied. Sequential
    writes stay in the cache until a line is full, so this takes less time than writing each bin to its final index.

    Args:
        unfilled: N bins.
        outline: outline of these bins.
        order: index of the bin that comes first, second, …: int64 [N].
        outline_out: outline of N bins, which is written.
    """
    bounds, begins = outline.bounds(), np.empty(len(order), dtype=np.int64)
    _reorder(order, outline.templates, bounds, outline_out.sizes, outline_out.templates, begins)
    if outline.component_ids is not None and outline_out.component_ids is not None:
        outline.component_ids.take(order, out=outline_out.component_ids)
    return replace(unfilled, fill=partial(_fill_reordered, unfilled, bounds, begins))


def filled(unfilled: UnfilledBins, outline: Outline, positions: NDArray[np.int64]) -> Bins:
    """Returns `Bins` of N unfilled bins, given their outline and their positions: int64 [N]."""
    bounds = outline.bounds()
    columns = _empty_columns(int(bounds[-1]), unfilled.dtypes)
    num_tokens = unfilled.fill(bounds, columns)
    return Bins(
        bin_ends=bounds[1:],
        positions=positions,
        component_ids=outline.component_ids,
        templates=outline.templates if unfilled.have_templates else None,
        known_tokens=num_tokens,
        **columns,
    )


def _empty_columns(num_sequences: int, dtypes: Dtypes) -> dict[str, NDArray[Any]]:
    """Returns columns to be filled; optional ones have their default, as not every part fills them."""
    columns = {name: np.empty(num_sequences, dtype) for name, dtype in dtypes.items()}
    for name in columns.keys() & SEQUENCE_COLUMNS.keys():
        columns[name].fill(SEQUENCE_COLUMNS[name])
    return columns


def _fill_parts(parts: Sequence[UnfilledBins], bounds: NDArray[np.int64], columns: Columns) -> int:
    """Fills the bins of several parts, as `Fill`."""
    first = num_tokens = 0
    for part in parts:
        num_tokens += part.fill(bounds[first : first + part.num_bins + 1], columns)
        first += part.num_bins
    return num_tokens


def _fill_from_bins(bins: Bins, bounds: NDArray[np.int64], columns: Columns) -> int:
    """Fills bins that a source without `find` has made, as `Fill`."""
    for name, column in columns.items():
        if (own := getattr(bins, name)) is not None:
            column[bounds[0] : bounds[-1]] = own
    return bins.num_tokens()


def _fill_reordered(
    unfilled: UnfilledBins,
    own_bounds: NDArray[np.int64],
    own_begins: NDArray[np.int64],
    bounds: NDArray[np.int64],
    columns: Columns,
) -> int:
    """Fills bins in the order in which they were found, then copies them to `columns` in another, as `Fill`.

    Args:
        unfilled: the bins.
        own_bounds: start of each bin in the order in which they were found, and the end of the last: int64 [N + 1].
        own_begins: for each bin in the new order, its start in `own_bounds`: int64 [N].
        bounds: start of each bin in `columns`, and the end of the last: int64 [N + 1].
        columns: receives the bins.
    """
    dtypes = {name: columns[name].dtype for name in unfilled.dtypes}
    own_columns = _empty_columns(int(own_bounds[-1]) + WIDE_LANES, dtypes)
    num_tokens = unfilled.fill(own_bounds, own_columns)
    for name, own in own_columns.items():
        _copy_bins(own, own_begins, bounds, columns[name])
    return num_tokens


@kernel_or()
def _reorder(order: Any, templates: Any, bounds: Any, sizes_out: Any, templates_out: Any, begins_out: Any) -> None:
    """Writes the sizes, templates and begins of bins in another order; `bounds` are those of the first order."""
    for b in range(len(order)):
        index = np.uint64(order[b])
        begin = bounds[index]
        sizes_out[b], templates_out[b], begins_out[b] = bounds[index + _ONE] - begin, templates[index], begin


def _copy_plainly(values: Any, begins: Any, bounds: Any, values_out: Any) -> None:
    for begin, at, end in zip(begins.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        values_out[at:end] = values[begin : begin + end - at]


@kernel_or(_copy_plainly)
def _copy_bins(values: Any, begins: Any, bounds: Any, values_out: Any) -> None:
    """Copies one column of bins, WIDE_LANES numbers at a time; the next bin overwrites what is copied too many.

    Args:
        values: the column, with at least WIDE_LANES unused numbers at its end.
        begins: index in `values` at which each bin begins: int64 [N].
        bounds: index in `values_out` at which each bin begins, and the end of the last: int64 [N + 1].
        values_out: receives the bins; nothing is written outside `bounds`.
    """
    last = np.uint64(max(bounds[-1] - WIDE_LANES, 0))  # from here on, lanes could end outside `bounds`
    for b in range(len(begins)):
        source, at, end = np.uint64(begins[b]), np.uint64(bounds[b]), np.uint64(bounds[b + 1])
        while at < end and at < last:
            copy_lanes(values, source, values_out, at)
            source, at = source + _WIDE, at + _WIDE
        while at < end:
            values_out[at] = values[source]
            source, at = source + _ONE, at + _ONE
