"""The interface of an epoch, `Source`: bins by position, and positions by id.

Owns `Source`, which assignments, streams, audits and the server use. Leaves finding bins first and filling them later,
which most sources do, to `unfilled`; the prepared epoch to `prepared`, and sources made of other sources to `windows`,
`renumbered`, `groups` and `mixture`.

Shape letters: N bins, n ids.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Locations:
    """Where ids are in an epoch, as rows of a table; every array is int64 [rows], in the order of the ids asked for.

    Each id has a row. If the dataset lacks the id, all other columns of this row are -1. If its sequence was split, it
    has a row for each piece, by ascending first token. In a mixture it has a row for each component that has it, and
    for each time that it comes in the epoch, ascending by (component, first token, position); a component that has the
    id, but not in this epoch, gives a row with position -1.
    """

    ids: NDArray[np.int64]
    """The id."""
    first_tokens: NDArray[np.int64]
    """Index in the sequence of the piece's first token; 0 if the sequence was not split."""
    lengths: NDArray[np.int64]
    """Length in tokens."""
    positions: NDArray[np.int64]
    """Position of the bin that holds the id; -1 also if the bin is left out of the epoch."""
    index_in_bin: NDArray[np.int64]
    """The id's index among the sequences of that bin; -1 if the position is."""
    component_ids: NDArray[np.int64] | None = None
    """The component, -1 if no component has the id; None without a mixture."""


class Source(Protocol):
    """An epoch, as a function of position."""

    @property
    def num_bins(self) -> int:
        """Bins in the epoch; positions are [0, num_bins)."""
        ...

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        ...

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        ...

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order.

        Args:
            positions: int [N], each in [0, num_bins); repeats allowed.

        Raises:
            ValueError: a position is outside the epoch.
        """
        ...

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of the bins at the given positions, if possible without making them: int64 [N].

        A bin costs Σ (cost_linear · L + L²) over its sequences' lengths L; `groups` adds the cost of resources.
        """
        ...

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch.

        Args:
            ids: int [n].
        """
        ...


def checked_positions(positions: ArrayLike, num_bins: int) -> NDArray[np.int64]:
    """Returns positions as int64 [N]; raises a ValueError if one is outside [0, num_bins)."""
    wanted_positions = np.ascontiguousarray(positions, dtype=np.int64)
    if len(wanted_positions) and not 0 <= int(wanted_positions.min()) <= int(wanted_positions.max()) < num_bins:
        outside = wanted_positions[(wanted_positions < 0) | (wanted_positions >= num_bins)][0]
        raise ValueError(f"positions must be in [0, {num_bins}), got {outside}")
    return wanted_positions
