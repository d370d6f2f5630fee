"""Seeds, and the keys that follow from them: a key is a hash of (seed, epoch, purpose).

Owns `derive_key`, and the seed of each worker that goes through an epoch of its own. Leaves what a key decides to
`permutation`, `balance` and `sources`.
"""

import hashlib

from packhorse.packing import seed_from_components
from packhorse.topology import checked_integer

MAX_SEED = 2**64 - 1
"""Largest seed, and largest epoch."""


def derive_key(seed: int, epoch: int, purpose: str) -> int:
    """Returns the 64-bit key for one purpose in one epoch.

    Example:
        >>> derive_key(1, 0, "bins") == derive_key(0, 1, "bins")
        False

    Args:
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        purpose: what the key is for, e.g. "bins"; different purposes are independent.
    """
    material = b"packhorse.epoch.v1\0" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little") + purpose.encode()
    return int.from_bytes(hashlib.blake2b(material, digest_size=8).digest(), "little")


def independent_seed(seed: int, rank: int, worker: int) -> int:
    """Returns the seed under which one worker goes through the whole epoch (StreamMode INDEPENDENT).

    Example:
        >>> independent_seed(7, 0, 1) == independent_seed(7, 1, 0)
        False

    Args:
        seed: the run's seed.
        rank: data-parallel rank.
        worker: dataloader worker within the rank.
    """
    return seed_from_components(seed, rank, worker)


def checked_seed(name: str, value: object) -> int:
    """Returns a seed or epoch as an int; raises a ValueError with its name if it is not an integer in [0, 2^64)."""
    return checked_integer(name, value, 0, MAX_SEED)
