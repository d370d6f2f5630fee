"""The order of finished bins: `shuffle_bins`."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import checked_integer

_Bins = TypeVar("_Bins", list[Any], NDArray[Any])


def shuffle_bins(bin_indices: _Bins, seed: int | None = None) -> _Bins:
    """Returns a shuffled copy; for a seed, in the order that seqpack's function of this name gives.

    Example:
        >>> sorted(shuffle_bins([[0, 3], [1], [2, 4]], seed=1))
        [[0, 3], [1], [2, 4]]

    Args:
        bin_indices: bins, or indices of bins; an array is shuffled along its first axis.
        seed: at least 0; None for a random order.

    Raises:
        ValueError: neither list nor array, or a seed that is no integer of at least 0.
    """
    if not isinstance(bin_indices, (Sequence, np.ndarray)) or isinstance(bin_indices, (str, bytes, tuple)):
        raise ValueError(f"bin_indices must be a list or an array, got {type(bin_indices).__name__}")
    shuffled = bin_indices.copy()
    rng = np.random.default_rng(None if seed is None else checked_integer("seed", seed, 0))
    rng.shuffle(shuffled)
    return shuffled
