"""All bins of an epoch as lists, from templates and pools in memory: `materialize_epoch`."""

import secrets
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.prepared import EpochView
from packhorse.packing import Template

_BINS_AT_ONCE = 4096


def materialize_epoch(
    templates: Mapping[Template, int],
    length_to_indices: Mapping[int, NDArray[np.integer]],
    seed: int | None = None,
) -> Iterator[list[int]]:
    """Yields every bin of one epoch, in the order of positions, from templates and in-memory pools.

    Example:
        >>> bins = list(materialize_epoch({(5, 3): 2}, {5: np.array([0, 2]), 3: np.array([1, 3])}, seed=1))
        >>> len(bins), sorted(sum(bins, []))
        (2, [0, 1, 2, 3])

    Args:
        templates: template → multiplicity.
        length_to_indices: length in tokens → the indices of all sequences of that length, int [count].
        seed: in [0, 2^64); None for a random one.

    Yields:
        Each bin's indices, as ints, in the order of its template.

    Raises:
        ValueError: the templates do not use every index exactly once.
    """
    lengths = sorted(length for length, indices in length_to_indices.items() if len(indices))
    counts = {length: len(length_to_indices[length]) for length in lengths}
    plan = PlanIndex.build(templates, counts, max((sum(template) for template in templates), default=1))
    pool = np.concatenate(
        [np.asarray(length_to_indices[n], dtype=np.int64) for n in lengths] or [np.empty(0, np.int64)]
    )
    view = EpochView(plan, pool, seed=secrets.randbits(64) if seed is None else seed, epoch=0)
    return _lists(view)


def _lists(view: EpochView) -> Iterator[list[int]]:
    """Yields the ids of each bin, in the order of positions."""
    for first in range(0, view.num_bins, _BINS_AT_ONCE):
        bins = view.bins(np.arange(first, min(first + _BINS_AT_ONCE, view.num_bins)))
        ids, start = bins.ids.tolist(), 0
        for end in bins.bin_ends.tolist():
            yield ids[start:end]
            start = end
