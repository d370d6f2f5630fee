"""What an epoch may be: anything that has bins by position, and positions by id.

Owns the protocol that assignments, streams, audits and the server know, and nothing else of an epoch. The prepared
epoch (`view`) is one source, `windows` orders it otherwise; `skip` and `mixture` make sources of others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Locations:
    """Where ids are in an epoch; every array is int64 [n], and -1 but for its id where the dataset lacks one.

    One row an id, in the order asked for; an id whose sequence was split has a row for each piece, one after the other
    by ascending start. In a mixture an id has rows for every component that has it, and in each for every time that it
    comes in the epoch, ascending by (dataset, first token, position); one with position -1 where it does not come.
    """

    ids: NDArray[np.int64]
    """The id."""
    first_tokens: NDArray[np.int64]
    """First token in its sequence."""
    lengths: NDArray[np.int64]
    """Length in tokens."""
    positions: NDArray[np.int64]
    """Position of the bin that holds the id; -1 also where the bin is left out of the epoch."""
    index_in_bin: NDArray[np.int64]
    """The id's index among the sequences of that bin."""
    component_ids: NDArray[np.int64] | None = None
    """Which of a mixture's components the row is of, -1 where none has the id; None where there is one dataset."""


def checked_positions(positions: ArrayLike, num_bins: int) -> NDArray[np.int64]:
    """Returns positions as int64 [N]; a ValueError where one is outside [0, num_bins)."""
    wanted = np.ascontiguousarray(positions, dtype=np.int64)
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < num_bins:
        bad = wanted[(wanted < 0) | (wanted >= num_bins)][0]
        raise ValueError(f"positions must be in [0, {num_bins}), got {bad}")
    return wanted


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
        """Returns the cost of the bins at the given positions, without making them: int64 [N].

        A bin costs Σ (cost_linear · L + L²) over its sequences' lengths L.
        """
        ...

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch.

        Args:
            ids: int [n].
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A dataset of a mixture, or anything else that has epochs: windows, another mixture.

    Example:
        >>> import numpy as np
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> code = Component.of("code", lambda epoch: EpochView(plan, np.arange(6), seed=1, epoch=epoch))
        >>> code.name, code.num_bins
        ('code', 6)
    """

    name: str
    """What weights and messages call it."""
    source_of: Callable[[int], Source]
    """Its epochs by number. Called for every request, so it should remember what it made last."""
    num_bins: int
    """Bins in each of its epochs."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    max_sequences_per_bin: int
    """The most sequences in any bin."""
    num_tokens: int | None = None
    """Tokens in each of its epochs; needed where weights are shares of tokens."""
    digest: str = ""
    """Fingerprint of everything that decides its bins but the seed."""
    num_datasets: int = 1
    """How many datasets it is made of: more than one for a mixture."""
    num_templates: int = 0
    """The numbers of its bins' templates are below; 0 where it is not known, and a mixture then has none for them."""
    most_epochs: int = 1
    """How many of its epochs one epoch of a mixture takes at most, unless the mixture repeats components."""

    @classmethod
    def of(
        cls,
        name: str,
        source_of: Callable[[int], Source],
        *,
        num_tokens: int | None = None,
        digest: str = "",
        num_datasets: int = 1,
        num_templates: int = 0,
    ) -> "Component":
        """Makes a component of its epochs alone; the two epochs used last are remembered."""
        remembered = lru_cache(maxsize=2)(source_of)
        first = remembered(0)
        return cls(
            name=name,
            source_of=remembered,
            num_bins=first.num_bins,
            max_seq_len=first.max_seq_len,
            max_sequences_per_bin=first.max_sequences_per_bin,
            num_tokens=num_tokens,
            digest=digest,
            num_datasets=num_datasets,
            num_templates=num_templates,
        )
