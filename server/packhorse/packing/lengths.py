"""Lengths of sequences: from a list to a checked array, to a histogram, and to an order by length.

Leaves rooms to `rooms`, the check of a histogram to `counts`, and packing to `registry`.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.packing.counts import MAX_SEQ_LEN
from packhorse.parameters import parameter
from packhorse.topology import checked_integer

_COUNTED_BELOW = 1 << 16
"""Values are sorted by counting if the greatest is below this, or below four times their number; else by comparing."""

_FEW_LENGTHS = 1024
"""Fewer lengths than this are checked in Python and sorted by comparing, which takes less time than the other ways."""


def checked_lengths(lengths: ArrayLike, max_seq_len: int | None = None) -> NDArray[np.int64]:
    """Returns `lengths` as int64 [S].

    Example:
        >>> checked_lengths([5, 3, 8], max_seq_len=8)
        array([5, 3, 8])

    Args:
        lengths: list or array of integers, each in [1, max_seq_len], in tokens; may be empty.
        max_seq_len: the longest length allowed; None for MAX_SEQ_LEN.

    Raises:
        ValueError: not one-dimensional, or a length is not an integer in the range; the message names the first.
    """
    longest = MAX_SEQ_LEN if max_seq_len is None else max_seq_len
    if _are_few_in_range(lengths, longest):
        return np.array(lengths, dtype=np.int64)
    if isinstance(lengths, (str, bytes)) or (not isinstance(lengths, Sequence) and not hasattr(lengths, "__array__")):
        raise ValueError(f"lengths must be a list or array of integers, got {type(lengths).__name__}")
    if not hasattr(lengths, "__array__"):
        return _in_range(_array_of_list(lengths), longest)
    values = np.asarray(lengths)
    if values.ndim != 1:
        raise ValueError(f"lengths must have one dimension, got shape {values.shape}")
    if not values.size:
        return np.empty(0, dtype=np.int64)
    if values.dtype.kind not in "iu":
        return _in_range(_array_of_list(values.tolist()), longest)
    return _in_range(values, longest)


def _are_few_in_range(lengths: Any, longest: int) -> bool:
    """Returns whether `lengths` is a list of few integers in [1, longest], sooner than one call of NumPy does."""
    if type(lengths) is not list or len(lengths) >= _FEW_LENGTHS or set(map(type, lengths)) != {int}:
        return False
    return bool(min(lengths) >= 1 and max(lengths) <= longest)


def _array_of_list(lengths: Any) -> NDArray[Any]:
    """Returns the array of a list of integers. Checks each, as NumPy would take True for 1 and make [1, 2.5] floats."""
    if not len(lengths):
        return np.empty(0, dtype=np.int64)
    array_of_ints = _array_of_plain_integers(lengths)
    if array_of_ints is not None:
        return array_of_ints
    wrong = {kind for kind in set(map(type, lengths)) if kind is bool or not issubclass(kind, Integral)}
    if wrong:
        index = next(i for i, value in enumerate(lengths) if type(value) in wrong)
        raise ValueError(f"lengths[{index}] must be an integer of at least 1, got {lengths[index]!r}")
    try:
        return np.frombuffer(array("q", lengths), dtype=np.int64)  # half the time of np.array
    except OverflowError:  # a length is beyond int64, and `_in_range` names it
        return np.array([int(value) for value in lengths], dtype=object)


def _array_of_plain_integers(lengths: Any) -> NDArray[np.int64] | None:
    """Returns the array of a list of plain ints, in half the time of looking at every type; None if some may not be.

    If the sum is a plain int, every value is an int or a bool. A bool is refused; True and False are below 2, so only
    the types of such values are looked at.
    """
    if type(lengths) is not list or type(lengths[0]) is not int:
        return None
    try:
        with np.errstate(all="ignore"):  # terms of NumPy's types may overflow here; they are looked at one by one
            sums_to_int = type(sum(lengths)) is int
        values = np.frombuffer(array("q", lengths), dtype=np.int64)
    except Exception:  # whatever the addition of another type raises, such as that of strings
        return None
    if sums_to_int and all(type(lengths[index]) is not bool for index in np.flatnonzero(values < 2).tolist()):
        return values
    return None


def _in_range(values: NDArray[Any], longest: int) -> NDArray[np.int64]:
    """Returns values as int64; raises a ValueError that names the first one outside [1, longest]."""
    if values.size and (values.min() < 1 or values.max() > longest):
        index = int(np.argmax((values < 1) | (values > longest)))
        value = int(values[index])
        if value < 1:
            raise ValueError(f"lengths[{index}] must be an integer of at least 1, got {value}")
        raise ValueError(
            f"lengths[{index}] = {value} is over "
            + parameter("max_seq_len")
            + f" {longest}: raise "
            + parameter("max_seq_len")
            + ", or drop, truncate or split it first"
        )
    return values.astype(np.int64, copy=False)


def sort_indices_by_length(lengths_arr: ArrayLike, tolerance: int = 1, seed: int | None = None) -> NDArray[np.int64]:
    """Returns all indices by descending bucket, length // tolerance. Within a bucket they keep their order.

    With a seed they are shuffled within each bucket instead, in the same order as by seqpack's function of this name.
    The sorts are stable, so every CPU gives the same order.

    Example:
        >>> sort_indices_by_length([3, 8, 5, 8])
        array([1, 3, 2, 0])

    Args:
        lengths_arr: integers [S] of at least 1, in tokens.
        tolerance: width of a bucket, in tokens, at least 1.
        seed: at least 0; shuffles the indices within every bucket. None keeps their order.

    Returns:
        int64 [S].

    Raises:
        ValueError: a bad length, tolerance or seed.
    """
    return order_by_length(checked_lengths(lengths_arr), tolerance, seed)


def order_by_length(lengths: NDArray[np.int64], tolerance: int, seed: int | None) -> NDArray[np.int64]:
    """Does the work of `sort_indices_by_length`, for lengths that are already checked: int64 [S]."""
    buckets = lengths // checked_integer("tolerance", tolerance, 1)
    if seed is None:
        from_the_top = buckets.max(initial=0) - buckets  # ascends as the buckets descend, and is at least 0
        return sorted_indices(from_the_top)
    ties = np.random.default_rng(checked_integer("seed", seed, 0)).random(len(lengths))
    return np.lexsort((ties, -buckets)).astype(np.int64, copy=False)


def length_histogram_from_lengths(
    lengths: ArrayLike, max_seq_len: int | None = None
) -> tuple[Counter[int], dict[int, NDArray[np.int64]]]:
    """Counts lengths, and lists the indices of each, in O(S) if the greatest length is below about four times S.

    Example:
        >>> counts, indices = length_histogram_from_lengths([5, 3, 5])
        >>> counts, indices[5]
        (Counter({5: 2, 3: 1}), array([0, 2]))

    Args:
        lengths: list or array of integers of at least 1, in tokens.
        max_seq_len: a longer length counts as this one, as if it were truncated, as in seqpack; None to count every
            length as it is.

    Returns:
        length → number of sequences, and length → their indices, int64 [count], ascending.

    Raises:
        ValueError: a length is not an integer of at least 1; the message names the first.
    """
    values = checked_lengths(lengths)
    if max_seq_len is not None:
        values = np.minimum(values, checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN))
    distinct, counts, order = sorted_by_value(values)
    keys = distinct.tolist()
    indices = np.split(order, np.cumsum(counts)[:-1]) if keys else []
    return Counter(dict(zip(keys, counts.tolist(), strict=True))), dict(zip(keys, indices, strict=True))


def sorted_by_value(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups equal values of an int64 [S] array, each at least 0.

    Returns:
        Three arrays of int64: the D distinct values, ascending: [D]; how often each occurs: [D]; all indices, ascending
        by (value, index): [S].
    """
    order = sorted_indices(values)
    ascending = values[order]
    is_first = np.empty(len(values), dtype=bool)
    is_first[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    (starts,) = is_first.nonzero()
    counts = np.empty_like(starts)
    if len(starts):
        np.subtract(starts[1:], starts[:-1], out=counts[:-1])
        counts[-1] = len(values) - starts[-1]
    return ascending[starts], counts, order


def sorted_indices(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices of int64 [S], each at least 0, ascending by (value, index); counts if that is faster."""
    if len(values) < _FEW_LENGTHS:
        return values.argsort(kind="stable")
    greatest = int(values.max())
    if greatest >= max(_COUNTED_BELOW, 4 * len(values)):
        return values.argsort(kind="stable")
    from packhorse.packing.on_demand.list_kernels import count_values  # needs Numba, which packing histograms do not

    _, order = count_values(values, greatest + 1)
    return order
