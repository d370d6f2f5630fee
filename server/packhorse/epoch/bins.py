"""Bins as arrays: `Bins`, taking some of them, and joining several.

Leaves which bins an epoch has to `sources`, and plans that bins are made from to `plan_index`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import cost_of

_Scalar = TypeVar("_Scalar", bound=np.generic)

PoolArray = NDArray[np.uint32 | np.int64]
"""An array of ids, of the dtype of a dataset's pool."""

SEQUENCE_COLUMNS: Mapping[str, np.generic] = {
    "first_tokens": np.uint32(0),
    "group_ids": np.int64(-1),
    "rows": np.uint16(0),
}
"""Optional fields of `Bins` with a value for every sequence → the value of all sequences if the field is None."""

_BIN_COLUMNS: Mapping[str, np.generic] = {"component_ids": np.int32(-1), "templates": np.int64(-1)}
"""Optional fields of `Bins` with a value for every bin → the value of all bins if the field is None."""


def read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns a read-only view. Pools are mapped read-only, and kernels are compiled for such arrays only."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bins:
    """N bins with S sequences, laid end to end: arrays of sequences go through one bin after another."""

    ids: PoolArray
    """Ids of all sequences, bin after bin, in the pool's dtype: uint32 or int64 [S]."""
    lengths: NDArray[np.int32]
    """Lengths of the sequences in tokens: int32 [S]."""
    bin_ends: NDArray[np.int64]
    """Exclusive end of every bin in `ids`: int64 [N]."""
    positions: NDArray[np.int64]
    """Position of every bin: int64 [N]; -1 for a bin that the remainder policy added."""
    first_tokens: PoolArray | None = None
    """First token of each piece in its sequence: uint32 or int64 [S]; None if all begin at token 0."""
    component_ids: NDArray[np.int32] | None = None
    """A mixture's dataset for each bin, -1 for an empty bin: int32 [N]; None without a mixture. Datasets are numbered
    in the order of components, and of the datasets in each."""
    templates: NDArray[np.int64] | None = None
    """Number of each bin's template in the source, -1 for a bin without one: int64 [N]; None if no bin has one."""
    group_ids: NDArray[np.int64] | None = None
    """The group of every sequence, -1 for a sequence without one: int64 [S]; None without groups. A group's sequences
    are next to each other in one bin.
    """
    rows: NDArray[np.uint16] | None = None
    """Row of every sequence in its bin, ascending within each bin, if bins are joined from shorter ones: uint16 [S];
    otherwise None.
    """
    known_tokens: int | None = None
    """Sum of all lengths, if it is known."""

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.bin_ends)

    def sizes(self) -> NDArray[np.int64]:
        """Returns the number of sequences in every bin: int64 [N]."""
        sizes = self.bin_ends.copy()
        sizes[1:] -= self.bin_ends[:-1]
        return sizes

    def items(self) -> NDArray[np.int64]:
        """Returns the first sequence of each item, and S at the end: int64 [items + 1].

        An item is a group, or a sequence without one.
        """
        if self.group_ids is None:
            return np.arange(len(self.ids) + 1)
        begins = np.ones(len(self.ids) + 1, dtype=np.bool_)
        begins[1:-1] = (self.group_ids[1:] != self.group_ids[:-1]) | (self.group_ids[1:] < 0)
        begins[self.bin_ends] = True
        return np.flatnonzero(begins)

    def num_tokens(self) -> int:
        """Returns the sum of all lengths, in tokens."""
        return int(self.lengths.sum(dtype=np.int64)) if self.known_tokens is None else self.known_tokens

    def costs(self, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of every bin, Σ (cost_linear · L + L²) over its sequences' lengths L: int64 [N]."""
        lengths = self.lengths.astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(cost_of(lengths, cost_linear))))
        return np.diff(sums[self.bin_ends], prepend=0)

    def take(self, which: NDArray[np.int64]) -> "Bins":
        """Returns some bins, in the given order.

        Args:
            which: int64 [M], indices of bins; repeats allowed.
        """
        sizes = self.sizes()[which]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        # Of their sequences: bins that end at [2, 5], the second taken first, have the sequences [2, 3, 4, 0, 1].
        indices = np.repeat(self.bin_ends[which] - ends, sizes) + np.arange(total)
        return Bins(
            **self.sequences(indices),
            bin_ends=ends,
            positions=self.positions[which],
            component_ids=None if self.component_ids is None else self.component_ids[which],
            templates=None if self.templates is None else self.templates[which],
        )

    def sequences(self, which: NDArray[np.int64]) -> dict[str, Any]:
        """Returns the arguments of a `Bins` that hold some sequences, such as ids and lengths.

        Args:
            which: int64 [M], indices into `ids`.

        Returns:
            Field name → its values for these sequences, [M]; None if the field is None here.
        """
        columns = {name: getattr(self, name) for name in ("ids", "lengths", *SEQUENCE_COLUMNS)}
        return {name: None if column is None else column[which] for name, column in columns.items()}


def joined(parts: Sequence[Bins]) -> Bins:
    """Returns the bins of all parts, one part after the other.

    If only some parts have an optional field, the other parts get its default: token 0, no group, row 0, no component
    or no template.

    Example:
        >>> one = Bins(ids=np.array([7]), lengths=np.array([5]), bin_ends=np.array([1]), positions=np.array([0]))
        >>> joined([one, one]).bin_ends
        array([1, 2])

    Args:
        parts: at least one.
    """
    if len(parts) == 1:
        return parts[0]

    def column(name: str, default: np.generic, sizes: list[int]) -> NDArray[Any] | None:
        """Joins an optional field; a part without it, of the given size, gets the value `default`."""
        values = [getattr(part, name) for part in parts]
        if all(each is None for each in values):
            return None
        filled = [np.full(size, default) if each is None else each for each, size in zip(values, sizes, strict=True)]
        return np.concatenate(filled)

    num_bins, num_sequences = [len(part) for part in parts], [len(part.ids) for part in parts]
    starts = np.cumsum([0, *num_sequences])  # of each part among all sequences; and their number, which is not needed
    optional: dict[str, Any] = {
        name: column(name, default, num_sequences) for name, default in SEQUENCE_COLUMNS.items()
    }
    optional |= {name: column(name, default, num_bins) for name, default in _BIN_COLUMNS.items()}
    return Bins(
        ids=np.concatenate([part.ids for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        bin_ends=np.concatenate([part.bin_ends + start for part, start in zip(parts, starts, strict=False)]),
        positions=np.concatenate([part.positions for part in parts]),
        **optional,
    )
