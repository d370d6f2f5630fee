"""`pack_sequences` and `pack_sizes`: from a list of lengths, or of sizes, to bins of indices.

Owns `PackedSequences`, and the step from a plan by length to the indices of sequences, in O(S). Leaves plans to
`registry` and `budgets/vectors`, and packing in a given order to `list_packers`.

Shape letters: S sequences, D distinct lengths, N bins, d dimensions of a size.
"""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.packing.budgets.distinct_rows import distinct_rows
from packhorse.packing.budgets.size_classes import SizeClasses
from packhorse.packing.budgets.vectors import pack_classes
from packhorse.packing.lengths import checked_lengths, sorted_by_value
from packhorse.packing.on_demand._collector import collector_paused
from packhorse.packing.on_demand.list_packers import first_fit, in_bins, next_fit, split_bins
from packhorse.packing.plan import Template, canonical_templates
from packhorse.packing.registry import (
    DEFAULT_TIME_LIMIT_SECONDS,
    check_algorithm,
    check_time_limit,
    packer,
)
from packhorse.packing.rooms import checked_rule, rooms_of_lengths
from packhorse.packing.stats import PackingStats
from packhorse.topology import checked_integer


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSequences:
    """Bins of indices into the packed lengths. Every index is in exactly one bin."""

    indices: NDArray[np.int64] = field(repr=False)
    """Indices of all sequences, bin after bin: int64 [S]."""
    bin_ends: NDArray[np.int64] = field(repr=False)
    """Exclusive end of every bin in `indices`: int64 [N]."""
    lengths: NDArray[np.int64] = field(repr=False)
    """Room of every sequence by index, in tokens: its length with align and extra_tokens applied: int64 [S]."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    max_sequences_per_bin: int | None
    """The most sequences in a bin that the packer was allowed; None for no limit."""
    algorithm: str
    """Name of the packer that made the bins."""

    @property
    def num_bins(self) -> int:
        """Number of bins; none is empty."""
        return len(self.bin_ends)

    def bins(self) -> list[list[int]]:
        """Returns each bin's indices as a list."""
        return split_bins(self.indices, self.bin_ends)

    def stats(self) -> PackingStats:
        """Returns figures of how full the bins are, counted in rooms, in O(S)."""
        packed = self.lengths[self.indices].tolist()
        ends = self.bin_ends.tolist()
        templates: Counter[Template] = Counter()
        for start, end in zip([0, *ends], ends, strict=False):  # each end is the next bin's start
            templates[tuple(sorted(packed[start:end], reverse=True))] += 1
        return PackingStats.from_templates(
            templates, self.max_seq_len, max_sequences_per_bin=self.max_sequences_per_bin
        )


def pack_sequences(
    lengths: ArrayLike,
    max_seq_len: int,
    *,
    algorithm: str = "best-fit",
    max_sequences_per_bin: int | None = None,
    seed: int | None = None,
    align: int = 1,
    extra_tokens: int = 0,
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
) -> PackedSequences:
    """Packs a list of lengths.

    A histogram packer plans on the counts, and the indices of each length fill the plan's slots, in O(S). Bins then
    come in the canonical order of their templates. A packer of `LIST_ONLY` goes through the sequences in an order, and
    bins come in the order in which they are opened.

    Example:
        >>> packed = pack_sequences([5, 3, 8, 2], max_seq_len=8)
        >>> packed.indices, packed.bin_ends  # bins [2], [0, 1] and [3]
        (array([2, 0, 1, 3]), array([1, 3, 4]))

    Args:
        lengths: list or array of integers [S], each in [1, max_seq_len], in tokens; may be empty.
        max_seq_len: a bin's capacity in tokens.
        algorithm: "auto", a name of `PACKERS`, or one of `LIST_ONLY`.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        seed: in [0, 2^64); shuffles the sequences of equal length, and bins keep their templates. None keeps their
            order. For "random-order" it decides the order (None: random); "next-fit" ignores it.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens added to every sequence before rounding; -1 leaves out the last one.
        time_limit_seconds: as in `pack_histogram`.

    Raises:
        ValueError: a bad length (names the first one's index and value) or option.
    """
    rule = checked_rule(max_seq_len, align, extra_tokens)
    capacity = limit = rule.max_seq_len
    if max_sequences_per_bin is not None:
        limit = min(capacity, checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1))
    if seed is not None:
        seed = checked_integer("seed", seed, 0, 2**64 - 1)
    check_algorithm(algorithm, list_only=True)
    check_time_limit(time_limit_seconds)
    rooms = rooms_of_lengths(checked_lengths(lengths, rule.longest_length), rule)
    name = algorithm
    if algorithm == "next-fit":
        indices, ends = in_bins(next_fit, rooms, np.arange(len(rooms)), capacity, limit)
    elif algorithm == "random-order":
        order = np.random.default_rng(seed).permutation(len(rooms))
        indices, ends = in_bins(first_fit, rooms, order, capacity, limit)
    else:
        distinct, counts, order = sorted_by_value(rooms)
        pairs = list(zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True))
        may_run_for_seconds = algorithm in ("auto", "optimal")  # too long a pause of the garbage collector
        with nullcontext() if may_run_for_seconds else collector_paused():
            plan = packer(algorithm)(pairs, capacity, limit, time_limit_seconds)
            indices, ends = _drawn(plan.templates, distinct, counts, order, seed)
        name = plan.algorithm
    return PackedSequences(
        indices=indices,
        bin_ends=ends,
        lengths=rooms,
        max_seq_len=capacity,
        max_sequences_per_bin=max_sequences_per_bin,
        algorithm=name,
    )


def pack_sizes(sizes: NDArray[np.int64], capacities: NDArray[np.int64], *, seed: int | None = None) -> PackedSequences:
    """Packs items under several budgets by best-fit-decreasing; see `pack_classes`.

    Example:
        >>> packed = pack_sizes(np.array([[4, 0], [6, 2], [4, 1]]), np.array([10, 2]))
        >>> packed.bins()
        [[1, 0], [2]]

    Args:
        sizes: sizes of each item: int64 [S, d], the first in tokens and at least 1; each is in [0, its capacity].
        capacities: a bin's capacity in each dimension: int64 [d].
        seed: as in `pack_sequences`; shuffles items of the same sizes.
    """
    first, ranks = distinct_rows(sizes)
    classes = SizeClasses.of(sizes[first], np.bincount(ranks), capacities, items_per_class=1)
    class_of = classes.numbers_of(sizes)  # counted from 1
    class_numbers = np.arange(1, len(classes.sizes) + 1)
    counts = np.bincount(class_of, minlength=len(class_numbers) + 1)[1:]
    templates = pack_classes(classes.sizes, counts, capacities)
    indices, ends = _drawn(templates, class_numbers, counts, np.argsort(class_of, kind="stable"), seed)
    return PackedSequences(
        indices=indices,
        bin_ends=ends,
        lengths=sizes[:, 0],
        max_seq_len=int(capacities[0]),
        max_sequences_per_bin=None,
        algorithm="best-fit",
    )


def _drawn(
    templates: Counter[Template],
    distinct: NDArray[np.int64],
    counts: NDArray[np.int64],
    order: NDArray[np.int64],
    seed: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Fills the slots of a plan with indices of sequences.

    Args:
        templates: template → multiplicity.
        distinct: the distinct lengths, or class numbers, ascending: int64 [D].
        counts: number of sequences of each: int64 [D].
        order: indices of the sequences, by ascending length or class: int64 [S]; shuffled in place if there is a seed.
        seed: shuffles the sequences of one length or class; None keeps their order.

    Returns:
        The indices bin after bin, int64 [S], and the bins' exclusive ends, int64 [N].
    """
    from packhorse.packing.on_demand.list_kernels import draw_templates, shuffle_pools

    if seed is not None:
        shuffle_pools(order, np.cumsum(counts), np.uint64(seed))
    canonical = canonical_templates(templates)
    sizes = np.array([len(template) for template, _ in canonical], dtype=np.int64)
    nums_bins = np.array([multiplicity for _, multiplicity in canonical], dtype=np.int64)
    flat = np.array([value for template, _ in canonical for value in template], dtype=np.int64)
    indices = np.empty(len(order), dtype=np.int64)
    ends = np.empty(templates.total(), dtype=np.int64)
    draw_templates(sizes, nums_bins, flat, distinct, counts, order, indices, ends)
    return indices, ends
