"""Functions with the names and results of those of seqpack, a published package, so that its users change one import.

Owns checking their arguments, a seed made of several numbers, and shuffling bins. Leaves packing to
`on_demand/list_packers`, `best_fit` and `spreading`, the order by length to `lengths`, and figures to `stats`.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, MutableSequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.packing.best_fit import worst_fit_batched
from packhorse.packing.counts import MAX_SEQ_LEN, checked_counts
from packhorse.packing.lengths import checked_lengths, order_by_length
from packhorse.packing.on_demand.list_packers import ListPacker, first_fit, in_bins, split_bins, worst_fit
from packhorse.packing.plan import Template
from packhorse.packing.spreading import worst_fit_decreasing
from packhorse.topology import checked_integer


def greedy_pack_sequences(
    lengths: ArrayLike,
    max_seq_len: int,
    tolerance: int = 1,
    seed: int | None = None,
    *,
    max_sequences_per_bin: int | None = None,
) -> list[list[int]]:
    """Packs by first-fit-decreasing: each sequence, longest first, goes into the earliest opened bin with room.

    Like seqpack's function of this name.

    Example:
        >>> greedy_pack_sequences([5, 3, 8, 2], max_seq_len=8)
        [[2], [0, 1], [3]]

    Args:
        lengths: list or array of integers [S], each in [1, max_seq_len], in tokens.
        max_seq_len: a bin's capacity in tokens.
        tolerance: lengths in one bucket of this width count as equal; see `sort_indices_by_length`.
        seed: when given, reshuffles the sequences within every bucket.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.

    Returns:
        Each bin's indices into `lengths`.

    Raises:
        ValueError: a bad length (names the first one's index and value) or option.
    """
    return _by_length(first_fit, lengths, max_seq_len, tolerance, seed, max_sequences_per_bin)


def heap_pack_sequences(
    lengths: ArrayLike,
    max_seq_len: int,
    tolerance: int = 1,
    seed: int | None = None,
    *,
    max_sequences_per_bin: int | None = None,
) -> list[list[int]]:
    """Packs by worst-fit-decreasing: each sequence, longest first, goes into the bin with the most room.

    Among bins with equal room it goes into the earliest opened. Like seqpack's function of this name.

    Example:
        >>> heap_pack_sequences([5, 4, 2, 2], max_seq_len=8)
        [[0, 3], [1, 2]]

    Args:
        lengths: list or array of integers [S], each in [1, max_seq_len], in tokens.
        max_seq_len: a bin's capacity in tokens.
        tolerance: lengths in one bucket of this width count as equal; see `sort_indices_by_length`.
        seed: when given, reshuffles the sequences within every bucket.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.

    Returns:
        Each bin's indices into `lengths`.

    Raises:
        ValueError: a bad length (names the first one's index and value) or option.
    """
    return _by_length(worst_fit, lengths, max_seq_len, tolerance, seed, max_sequences_per_bin)


def _by_length(
    packer: ListPacker,
    lengths: ArrayLike,
    max_seq_len: int,
    tolerance: int,
    seed: int | None,
    max_sequences_per_bin: int | None,
) -> list[list[int]]:
    """Checks the arguments of seqpack's list packers, and packs in the order of `sort_indices_by_length`."""
    capacity = checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN)
    limit = capacity
    if max_sequences_per_bin is not None:
        limit = min(capacity, checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1))
    checked = checked_lengths(lengths, capacity)
    order = order_by_length(checked, tolerance, seed)
    return split_bins(*in_bins(packer, checked, order, capacity, limit))


def pack_length_histogram(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by worst-fit-decreasing, with the templates of seqpack's function of this name.

    Example:
        >>> pack_length_histogram({5: 2, 3: 3}, max_seq_len=8)
        Counter({(5, 3): 2, (3,): 1})

    Args:
        length_counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.

    Returns:
        Template → multiplicity.

    Raises:
        ValueError: a length outside [1, max_seq_len], a negative count, or anything that is not an integer.
    """
    pairs, limit = checked_counts(length_counts, max_seq_len, None)
    return worst_fit_decreasing(pairs, int(max_seq_len), limit)  # products with a NumPy integer could overflow


def pack_length_histogram_batched(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by `worst_fit_batched`, with the templates of seqpack's function of this name.

    Costs O(distinct lengths · log), whatever the counts.

    Example:
        >>> pack_length_histogram_batched({5: 2, 3: 2}, max_seq_len=8)
        Counter({(5, 3): 2})

    Args:
        length_counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.

    Returns:
        Template → multiplicity.

    Raises:
        ValueError: a length outside [1, max_seq_len], a negative count, or anything that is not an integer.
    """
    pairs, limit = checked_counts(length_counts, max_seq_len, None)
    return worst_fit_batched(pairs, int(max_seq_len), limit)


def seed_from_components(*components: int) -> int:
    """Returns a 64-bit seed that depends on every component and on their order.

    Sums such as seed + epoch + rank give equal seeds to different streams; a hash does not. The values are those of
    seqpack's function of this name.

    Example:
        >>> seed_from_components(0, 1) == seed_from_components(1, 0)
        False

    Args:
        components: integers, e.g. (seed, epoch, rank).

    Returns:
        An int in [0, 2^64).

    Raises:
        ValueError: a component is not an integer.
    """
    for component in components:
        if isinstance(component, bool) or not isinstance(component, Integral):
            raise ValueError(f"each component must be an integer, got {component!r}")
    text = ":".join(str(component) for component in components)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


_Bins = TypeVar("_Bins", list[Any], NDArray[Any])


def shuffle_bins(bin_indices: _Bins, seed: int | None = None) -> _Bins:
    """Returns a shuffled copy of bins. With a seed, the order is that of seqpack's function of this name.

    Example:
        >>> sorted(shuffle_bins([[0, 3], [1], [2, 4]], seed=1))
        [[0, 3], [1], [2, 4]]

    Args:
        bin_indices: bins, or indices of bins; an array is shuffled along its first axis.
        seed: at least 0; None for a random order.

    Raises:
        ValueError: neither a list nor an array, or the seed is not an integer of at least 0.
    """
    if not isinstance(bin_indices, (MutableSequence, np.ndarray)):
        raise ValueError(f"bin_indices must be a list or an array, got {type(bin_indices).__name__}")
    shuffled = bin_indices.copy()
    rng = np.random.default_rng(None if seed is None else checked_integer("seed", seed, 0))
    rng.shuffle(shuffled)
    return shuffled
