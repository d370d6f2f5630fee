"""A plan laid out as tables, so that any bin's template, cost and draws are found without a search through the plan.

Owns the tables that depend only on the plan (not on seed or epoch), and the check that the plan uses every sequence
exactly once. Leaves seeds and keys to `sources.prepared`, and the loops that read the tables to `plan_kernels`
and `locating_kernels`.

A repeat is the slots of one length in a template: (5, 5, 3) has the repeats 5 × 2 and 3 × 1.

Shape letters: T templates, D distinct lengths, R repeats of all templates, C classes of sizes, d budgets.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.packing import Template, canonical_templates
from packhorse.topology import cost_of

_LOOKUP_BITS = 2
"""Bits by which `lookup` has more entries than templates: about 4 for each. A larger table would not fit the fast
cache."""

# The dtypes of Numbers and ShortNumbers, in a plan with narrow tables and in one with wide ones.
_NARROW, _WIDE = (np.int32, np.uint16), (np.int64, np.int32)
_NUMBERS_END, _SHORT_NUMBERS_END = 2**31, 2**16
"""Narrow tables hold Numbers and ShortNumbers below these."""

Numbers = NDArray[np.int32 | np.int64]
"""Counts or indices of bins, repeats or draws: int32 in narrow tables, int64 in wide ones."""

ShortNumbers = NDArray[np.uint16 | np.int32]
"""Indices of lengths, or counts of sequences in a bin: uint16 in narrow tables, int32 in wide ones."""


class PlanTables(NamedTuple):
    """The tables of a `PlanIndex` that kernels read, as a tuple, which Numba takes; fields as there."""

    lengths: NDArray[np.int32]
    counts: NDArray[np.int64]
    pool_starts: NDArray[np.int64]
    first_bin: Numbers
    first_repeat: Numbers
    repeat_length: ShortNumbers
    repeat_copies: ShortNumbers
    repeat_first_draw: Numbers
    template_size: ShortNumbers
    lookup: NDArray[np.int32]
    lookup_shift: int


class BinTables(NamedTuple):
    """The tables that lead from a bin to its template. Few, because each costs time when a kernel is called."""

    first_bin: Numbers
    template_size: ShortNumbers
    lookup: NDArray[np.int32]
    lookup_shift: int


class DrawTables(NamedTuple):
    """The tables that lead from a template to its draws."""

    lengths: NDArray[np.int32]
    first_repeat: Numbers
    repeat_length: ShortNumbers
    repeat_copies: ShortNumbers
    repeat_first_draw: Numbers


class RepeatTables(NamedTuple):
    """Tables of repeats, for finding the bin of a draw."""

    repeat_template: NDArray[np.int32]
    """The template of each repeat: int32 [R]."""
    repeats_by_length: NDArray[np.int32]
    """Repeats sorted by (length, template): int32 [R]."""
    first_by_length: NDArray[np.int64]
    """The first of each length's repeats in `repeats_by_length`, and R at the end: int64 [D + 1]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Budgets:
    """Sizes of classes, and capacities of a bin, in each budget: tokens, and resources with a cap."""

    sizes: NDArray[np.int64]
    """Sizes of each class: int64 [C, d]. Classes are numbered from 1, so class c is row c - 1."""
    capacities: NDArray[np.int64]
    """Capacity of a bin in each budget: int64 [d]."""

    def check(self, template: Template) -> None:
        """Raises a ValueError if a template names a class that does not exist, or takes more than a bin has."""
        if not 1 <= template[-1] <= template[0] <= len(self.sizes):
            raise ValueError(f"template {list(template)[:8]} names a class that is none of {len(self.sizes)}")
        takes = self.sizes[np.array(template) - 1].sum(axis=0)
        if (takes > self.capacities).any():
            raise ValueError(
                f"template {list(template)[:8]} takes {takes.tolist()} of a bin, over {self.capacities.tolist()}"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanIndex:
    """The tables of one plan.

    All tables of types Numbers and ShortNumbers are narrow if an epoch has fewer than 2^31 sequences, and fewer than
    2^16 distinct lengths and sequences in a bin; else all are wide. So kernels are compiled for two kinds of plans.
    Narrow tables matter to a mixture, whose plans push each other out of the processor's caches.
    """

    lengths: NDArray[np.int32]
    """Distinct lengths in tokens, ascending: int32 [D]."""
    counts: NDArray[np.int64]
    """Number of sequences of each length: int64 [D]."""
    pool_starts: NDArray[np.int64]
    """Index in the pool array of the first id of each length: int64 [D]."""
    first_bin: Numbers
    """First bin of each template, and the number of bins at the end: int32 or int64 [T + 1]."""
    first_repeat: Numbers
    """First repeat of each template, and the number of repeats at the end: int32 or int64 [T + 1]."""
    repeat_length: ShortNumbers
    """Index into `lengths` of each repeat: uint16 or int32 [R]."""
    repeat_copies: ShortNumbers
    """k_t(L): how often the length occurs in the template: uint16 or int32 [R]."""
    repeat_first_draw: Numbers
    """first_draw[t][L]: draws of that length that earlier templates take: int32 or int64 [R]."""
    template_size: ShortNumbers
    """Number of sequences in each template: uint16 or int32 [T]."""
    lookup: NDArray[np.int32]
    """Bounds for a bisection: the template of bin b is at least lookup[b >> lookup_shift], and at most the entry after
    it."""
    lookup_shift: int
    """Number of bits by which a bin's number is shifted to index `lookup`."""
    max_sequences_per_bin: int
    """The most sequences in any template; 0 for a plan without bins."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    rooms: NDArray[np.int32]
    """Tokens of a bin that each length takes: int32 [D]. This is the length itself, unless the plan is of classes: then
    `lengths` are their numbers.
    """
    pool_size: int
    """Number of entries of the pool that `pool_starts` indexes. A locality window's plan has the whole epoch's pool."""

    @property
    def num_bins(self) -> int:
        """B: bins in an epoch."""
        return int(self.first_bin[-1])

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return int(self.counts.sum())

    @cached_property
    def tables(self) -> PlanTables:
        """The tables that kernels read."""
        return PlanTables(*(getattr(self, name) for name in PlanTables._fields))

    @cached_property
    def bin_tables(self) -> BinTables:
        """The tables that kernels read to find the templates of bins."""
        return BinTables(*(getattr(self, name) for name in BinTables._fields))

    @cached_property
    def draw_tables(self) -> DrawTables:
        """The tables that kernels read to draw the ids of bins whose templates are found."""
        return DrawTables(*(getattr(self, name) for name in DrawTables._fields))

    @cached_property
    def repeat_tables(self) -> RepeatTables:
        """The tables that kernels read to locate ids; made on first use, since streams never need them."""
        num_templates, num_lengths = len(self.template_size), len(self.lengths)
        by_length = np.argsort(self.repeat_length, kind="stable")
        return RepeatTables(
            repeat_template=np.repeat(np.arange(num_templates, dtype=np.int32), np.diff(self.first_repeat)),
            repeats_by_length=by_length.astype(np.int32),
            first_by_length=np.searchsorted(self.repeat_length[by_length], np.arange(num_lengths + 1)),
        )

    def as_counts(self) -> Counter[int]:
        """Returns room in tokens → number of sequences, ascending.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).as_counts()
            Counter({1: 2, 3: 2})
        """
        counts: Counter[int] = Counter()
        for room, count in zip(self.rooms.tolist(), self.counts.tolist(), strict=True):
            counts[room] += count
        return counts

    def as_templates(self) -> Counter[Template]:
        """Returns template → multiplicity, in canonical order.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).as_templates()
            Counter({(3, 1): 2})
        """
        rooms = np.repeat(self.rooms[self.repeat_length], self.repeat_copies).tolist()
        ends = np.cumsum(self.template_size, dtype=np.int64).tolist()
        multiplicities = np.diff(self.first_bin).tolist()
        templates: Counter[Template] = Counter()
        for begin, end, multiplicity in zip([0, *ends[:-1]], ends, multiplicities, strict=True):
            templates[tuple(rooms[begin:end])] += multiplicity
        return templates

    def template_costs(self, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of a bin of each template, Σ (cost_linear · L + L²) over its lengths L: int64 [T]."""
        lengths = self.rooms.astype(np.int64)[self.repeat_length]
        sums = np.concatenate(([0], np.cumsum(self.repeat_copies * cost_of(lengths, cost_linear))))
        return np.diff(sums[self.first_repeat])

    @property
    def is_wide(self) -> bool:
        """Whether the tables are wide."""
        return self.first_bin.dtype == np.int64

    def widened(self) -> "PlanIndex":
        """Returns the same plan with wide tables.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).widened().first_bin.dtype
            dtype('int64')
        """
        number, short = _WIDE
        dtypes: dict[str, type[np.integer]] = {
            **dict.fromkeys(("first_bin", "first_repeat", "repeat_first_draw"), number),
            **dict.fromkeys(("repeat_length", "repeat_copies", "template_size"), short),
        }
        return replace(self, **{name: getattr(self, name).astype(dtype) for name, dtype in dtypes.items()})

    @classmethod
    def build(
        cls,
        templates: Mapping[Template, int],
        counts: Mapping[int, int],
        max_seq_len: int,
        budgets: Budgets | None = None,
    ) -> "PlanIndex":
        """Lays out a plan.

        Args:
            templates: template → multiplicity.
            counts: length in tokens → number of sequences.
            max_seq_len: a bin's capacity in tokens.
            budgets: sizes of classes, if templates and counts have class numbers instead of lengths; else None.

        Raises:
            ValueError: a template is not a descending tuple of at most max_seq_len tokens, or the plan does not use
                every sequence exactly once; the message names the template or length.
        """
        lengths = np.array(sorted(length for length, count in counts.items() if count), dtype=np.int32)
        index_of = {int(length): i for i, length in enumerate(lengths)}
        counts_array = np.array([counts[int(length)] for length in lengths], dtype=np.int64)
        drawn = [0] * len(lengths)  # draws of each length that the templates so far take
        first_bin, first_repeat, sizes = [0], [0], []
        repeats: list[tuple[int, int, int]] = []  # (index of the length, copies, first draw), columns of the tables
        for template, multiplicity in canonical_templates(templates):
            _check_template(template, multiplicity, max_seq_len, budgets)
            for length, group in groupby(template):
                if length not in index_of:
                    raise ValueError(f"template {list(template)[:8]} uses length {length}, which no sequence has")
                copies = sum(1 for _ in group)
                index = index_of[length]
                repeats.append((index, copies, drawn[index]))
                drawn[index] += copies * multiplicity
            first_bin.append(first_bin[-1] + multiplicity)
            first_repeat.append(len(repeats))
            sizes.append(len(template))
        for index, length in enumerate(lengths.tolist()):
            if drawn[index] != counts[length]:
                raise ValueError(
                    f"the templates use {drawn[index]} sequences of length {length}, but there are {counts[length]}"
                )
        repeat_length, repeat_copies, repeat_first_draw = np.array(repeats, dtype=np.int64).reshape(-1, 3).T
        largest_short = max(len(lengths), max(sizes, default=0))  # of all ShortNumbers
        is_narrow = int(counts_array.sum()) < _NUMBERS_END and largest_short < _SHORT_NUMBERS_END
        number, short = _NARROW if is_narrow else _WIDE
        first_bin_array = np.array(first_bin, dtype=np.int64)
        lookup, lookup_shift = _lookup_of(first_bin_array)
        return cls(
            lengths=lengths,
            counts=counts_array,
            pool_starts=np.concatenate(([0], np.cumsum(counts_array)))[:-1].astype(np.int64),
            first_bin=first_bin_array.astype(number),
            first_repeat=np.array(first_repeat, dtype=number),
            repeat_length=repeat_length.astype(short),
            repeat_copies=repeat_copies.astype(short),
            repeat_first_draw=repeat_first_draw.astype(number),
            template_size=np.array(sizes, dtype=short),
            lookup=lookup,
            lookup_shift=lookup_shift,
            max_sequences_per_bin=max(sizes, default=0),
            max_seq_len=max_seq_len,
            rooms=lengths if budgets is None else budgets.sizes[lengths - 1, 0].astype(np.int32),
            pool_size=int(counts_array.sum()),
        )


def _lookup_of(first_bin: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Returns `PlanIndex.lookup` and `lookup_shift`, given the first bin of each template, and the number of bins.

    The lookup has the template of every bin e << lookup_shift, up to the first number above num_bins; numbers beyond
    all bins get the last template. So each bin has an entry, and one after it.
    """
    num_templates, num_bins = len(first_bin) - 1, int(first_bin[-1])
    shift = max(0, num_bins.bit_length() - num_templates.bit_length() - _LOOKUP_BITS)
    edges = np.arange((num_bins >> shift) + 2, dtype=np.int64) << shift
    lookup = np.searchsorted(first_bin, edges, side="right") - 1
    return np.minimum(lookup, max(num_templates - 1, 0)).astype(np.int32), shift


def _check_template(template: Template, multiplicity: int, max_seq_len: int, budgets: Budgets | None) -> None:
    """Raises a ValueError if a template does not descend, is not used, or does not fit a bin."""
    if not template or multiplicity < 1 or any(a < b for a, b in pairwise(template)):
        raise ValueError(
            f"template {list(template)[:8]} × {multiplicity} is not a descending list of lengths used at least once"
        )
    if budgets is not None:
        budgets.check(template)
    elif sum(template) > max_seq_len:
        raise ValueError(f"template {list(template)[:8]} has {sum(template)} tokens, over {max_seq_len}")
