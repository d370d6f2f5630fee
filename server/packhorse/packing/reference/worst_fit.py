"""Worst-fit-decreasing on histograms: longest first, each sequence into the bin with the most room.

Owns the order in which it takes bins, and seqpack's two histogram packers by name; the loops are in `bin_groups`.
"""

from collections import Counter
from collections.abc import Mapping

from packhorse.packing.bin_groups import Group, fill_decreasing, spread_decreasing
from packhorse.packing.plan import Template, checked_counts


def most_room(group: Group) -> tuple[int, int]:
    """Orders bins: most room first, of several the one opened earliest."""
    return -group.room, group.first


def worst_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs; the same bins as sequence by sequence.

    Among bins with equal room the one opened earliest is taken, as in seqpack.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    return spread_decreasing(pairs, capacity, limit, most_room, one_per_new_bin=False)


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """As `worst_fit_decreasing`, but a bin that is taken is filled with the length: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room)


def pack_length_histogram(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by worst-fit-decreasing; the templates that seqpack's function of this name gives.

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
    return worst_fit_decreasing(pairs, int(max_seq_len), limit)


def pack_length_histogram_batched(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by `worst_fit_batched`; the templates that seqpack's function of this name gives.

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
