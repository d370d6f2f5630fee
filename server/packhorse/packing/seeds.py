"""Seeds that depend on several integers, and the order of finished bins: `shuffle_bins`.

Owns `seed_from_components`; leaves what a seed drives to its users.
"""

import hashlib
from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import checked_integer


def seed_from_components(*components: int) -> int:
    """Returns a 64-bit seed that depends on every component and on their order.

    Seeds that are added (seed + epoch + rank) collide; hashed ones do not. Gives the same values as the function of
    this name in seqpack.

    Example:
        >>> seed_from_components(0, 1) == seed_from_components(1, 0)
        False

    Args:
        components: integers, e.g. (seed, epoch, rank).

    Returns:
        An int in [0, 2^64).

    Raises:
        ValueError: a component is no integer.
    """
    for component in components:
        if isinstance(component, bool) or not isinstance(component, Integral):
            raise ValueError(f"each component must be an integer, got {component!r}")
    text = ":".join(str(component) for component in components)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


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
