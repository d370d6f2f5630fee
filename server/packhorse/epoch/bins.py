"""Bins laid end to end, and what is done with them as a whole: picking some, and joining.

Owns the arrays; leaves where they come from to the sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)

PoolArray = NDArray[np.uint32 | np.int64]
"""Ids as they lie in a pool."""


def read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns an array as a memory-mapped one is: kernels are compiled for these, so that no request waits for more."""
    if not array.flags.writeable:
        return array
    seen = array.view()
    seen.flags.writeable = False
    return seen


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bins:
    """Bins laid end to end.

    Legend: S sequences, N bins.
    """

    ids: PoolArray
    """Ids of all sequences, bin after bin, in the pool's dtype: uint32 or int64 [S]."""
    lengths: NDArray[np.int32]
    """Their lengths in tokens: int32 [S]."""
    bin_ends: NDArray[np.int64]
    """Exclusive end of every bin in `ids`: int64 [N]."""
    positions: NDArray[np.int64]
    """Position of every bin: int64 [N]; -1 for a bin that the remainder policy added."""
    first_tokens: PoolArray | None = None
    """First token of each entry in its sequence: uint32 or int64 [S]; None where all begin at token 0."""
    component_ids: NDArray[np.int32] | None = None
    """A mixture's component that each bin is of, -1 for an empty bin: int32 [N]; None where there is one dataset."""
    templates: NDArray[np.int64] | None = None
    """Number of each bin's template in the source, -1 where it is of none: int64 [N]; None where no bin is of one."""
    group_ids: NDArray[np.int64] | None = None
    """The group of every sequence, -1 where it is of none: int64 [S]; None where there are no groups. A group's
    sequences are next to each other in one bin."""
    rows: NDArray[np.uint16] | None = None
    """Which row of its bin every sequence is in, ascending within each bin, where bins are joined of shorter ones:
    uint16 [S]; None where no bin is."""
    known_tokens: int | None = None
    """Sum of all lengths, where whoever made the bins knows it."""

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.bin_ends)

    def sizes(self) -> NDArray[np.int64]:
        """Number of sequences in every bin: int64 [N]."""
        sizes = self.bin_ends.copy()
        sizes[1:] -= self.bin_ends[:-1]
        return sizes

    def items(self) -> NDArray[np.int64]:
        """Where everything begins that may not be parted, groups and sequences of none, and S: int64 [items + 1]."""
        if self.group_ids is None:
            return np.arange(len(self.ids) + 1)
        begins = np.ones(len(self.ids) + 1, dtype=np.bool_)
        begins[1:-1] = (self.group_ids[1:] != self.group_ids[:-1]) | (self.group_ids[1:] < 0)
        begins[self.bin_ends] = True
        return np.flatnonzero(begins)

    def num_tokens(self) -> int:
        """Sum of all lengths."""
        return int(self.lengths.sum(dtype=np.int64)) if self.known_tokens is None else self.known_tokens

    def costs(self, cost_linear: int) -> NDArray[np.int64]:
        """Cost of every bin, Σ (cost_linear · L + L²) over its sequences' lengths L: int64 [N]."""
        lengths = self.lengths.astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(cost_linear * lengths + lengths**2)))
        return np.diff(sums[self.bin_ends], prepend=0)

    def take(self, which: NDArray[np.int64]) -> "Bins":
        """Returns some bins, in the order asked for.

        Args:
            which: int64 [M], indices of bins; repeats allowed.
        """
        sizes = self.sizes()[which]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        members = np.repeat(self.bin_ends[which] - ends, sizes) + np.arange(total)
        return Bins(
            ids=self.ids[members],
            lengths=self.lengths[members],
            bin_ends=ends,
            positions=self.positions[which],
            first_tokens=None if self.first_tokens is None else self.first_tokens[members],
            component_ids=None if self.component_ids is None else self.component_ids[which],
            templates=None if self.templates is None else self.templates[which],
            group_ids=None if self.group_ids is None else self.group_ids[members],
            rows=None if self.rows is None else self.rows[members],
        )


def joined(parts: Sequence[Bins]) -> Bins:
    """Returns the bins of all parts, one part after the other; where some have first_tokens, others begin at token 0.

    Example:
        >>> one = Bins(ids=np.array([7]), lengths=np.array([5]), bin_ends=np.array([1]), positions=np.array([0]))
        >>> joined([one, one]).bin_ends
        array([1, 2])

    Args:
        parts: bins to lay one after the other, at least one part.
    """
    if len(parts) == 1:
        return parts[0]
    ends, before = [], 0
    for part in parts:
        ends.append(part.bin_ends + before)
        before += len(part.ids)
    first_tokens = None
    if any(part.first_tokens is not None for part in parts):
        zeros = np.zeros(max(len(part.ids) for part in parts), dtype=np.uint32)
        first_tokens = np.concatenate(
            [zeros[: len(part.ids)] if part.first_tokens is None else part.first_tokens for part in parts]
        )
    component_ids = [part.component_ids for part in parts if part.component_ids is not None]
    templates = None
    if any(part.templates is not None for part in parts):
        templates = np.concatenate(
            [np.full(len(part), -1) if part.templates is None else part.templates for part in parts]
        )
    group_ids = None
    if any(part.group_ids is not None for part in parts):
        group_ids = np.concatenate(
            [np.full(len(part.ids), -1) if part.group_ids is None else part.group_ids for part in parts]
        )
    rows = None
    if any(part.rows is not None for part in parts):
        rows = np.concatenate(
            [np.zeros(len(part.ids), np.uint16) if part.rows is None else part.rows for part in parts]
        )
    return Bins(
        ids=np.concatenate([part.ids for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        bin_ends=np.concatenate(ends),
        positions=np.concatenate([part.positions for part in parts]),
        first_tokens=first_tokens,
        component_ids=np.concatenate(component_ids) if component_ids else None,
        templates=templates,
        group_ids=group_ids,
        rows=rows,
    )
