"""The fingerprint of a set of ids: two sums of hashes, which do not depend on the order of the ids.

Leaves fingerprints of tokens to `fingerprints`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Arbitrary odd constants: one for each of the two sums, and one for the starts of pieces.
_ID_KEYS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))
_START_KEY = np.uint64(0x8CB92BA72F3D8DD7)

_CHUNK = 1 << 16
"""Ids hashed at a time, so that temporary arrays stay small."""


def ids_sum(ids: NDArray[np.integer], starts: NDArray[np.integer] | None = None) -> tuple[int, int]:
    """Returns two sums, modulo 2^64, of hashes of the ids; each sum hashes with another key.

    The sums of parts add up, modulo 2^64, to those of the whole, in any order. The probability that a missing,
    repeated or altered id goes unnoticed is about 2^-128.

    Example:
        >>> ids_sum(np.array([3, 1, 2])) == ids_sum(np.array([1, 2, 3])) != ids_sum(np.array([1, 2, 2]))
        True

    Args:
        ids: integers [n].
        starts: the first token of each piece, if the ids name pieces: integers [n]. A start of 0 counts as none,
            so that whole sequences have the same sums with and without starts.
    """
    sums = [0, 0]
    for first in range(0, len(ids), _CHUNK):
        chunk = np.asarray(ids[first : first + _CHUNK], dtype=np.int64).view(np.uint64)
        if starts is not None:
            begins = np.asarray(starts[first : first + _CHUNK], dtype=np.int64).view(np.uint64)
            chunk = chunk ^ np.where(begins == 0, np.uint64(0), _mixed(begins, _START_KEY))
        for index, key in enumerate(_ID_KEYS):
            sums[index] += int(np.sum(_mixed(chunk, key), dtype=np.uint64))
    return sums[0] % 2**64, sums[1] % 2**64


def _mixed(values: Any, key: np.uint64) -> Any:
    """Returns hashes of uint64 values, by the finalizer of SplitMix64, a bijection."""
    values = values + key
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
