"""A plan laid out for random access: from a bin's number to its template and draws in a few array reads.

Owns the tables that depend on the plan alone (not on seed or epoch), and the check that the plan uses exactly the
sequences there are. Leaves keys to `sources.prepared` and the arithmetic to `kernels`.
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

_LOOKUP_BITS = 2
"""A plan has about 2^2 entries of `lookup` for each template: more come from a slower cache."""


_NARROW, _WIDE = (np.int32, np.uint16), (np.int64, np.int32)

Numbers = NDArray[np.int32 | np.int64]
"""Of bins, runs or draws: int32 where an epoch has fewer than 2^31 sequences, and so has fewer of each, else int64."""

ShortNumbers = NDArray[np.uint16 | np.int32]
"""Of distinct lengths, or of sequences in a bin: uint16 beside int32, where both are below 2^16, else int32."""


class PlanTables(NamedTuple):
    """The tables of a `PlanIndex` that kernels read; each field is the PlanIndex's of that name."""

    lengths: NDArray[np.int32]
    counts: NDArray[np.int64]
    pool_starts: NDArray[np.int64]
    first_bin: Numbers
    first_run: Numbers
    run_length: ShortNumbers
    run_copies: ShortNumbers
    run_first_draw: Numbers
    template_size: ShortNumbers
    lookup: NDArray[np.int32]
    lookup_shift: int


class BinTables(NamedTuple):
    """Those that lead from a bin to its template: a kernel takes time for each that it is given."""

    first_bin: Numbers
    template_size: ShortNumbers
    lookup: NDArray[np.int32]
    lookup_shift: int


class DrawTables(NamedTuple):
    """Those that lead from a template to its draws."""

    lengths: NDArray[np.int32]
    first_run: Numbers
    run_length: ShortNumbers
    run_copies: ShortNumbers
    run_first_draw: Numbers


class RunTables(NamedTuple):
    """Tables of runs of equal lengths, for the way back from a draw to its bin."""

    run_template: NDArray[np.int32]
    """The template of each run: int32 [R]."""
    runs_by_length: NDArray[np.int32]
    """Runs sorted by (length, template): int32 [R]."""
    first_by_length: NDArray[np.int64]
    """Where each length's runs begin in `runs_by_length`, and R at the end: int64 [D + 1]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanIndex:
    """Tables of one plan.

    Those that grow with it are as narrow as its numbers allow, all of them or none: for kernels, that is two kinds of
    plans. A mixture may be of a thousand, and takes turns between those it is of, which push each other out of caches.

    Legend: T templates, D distinct lengths (ascending), R runs of equal lengths over all templates.
    """

    lengths: NDArray[np.int32]
    """Distinct lengths in tokens, ascending: int32 [D]."""
    counts: NDArray[np.int64]
    """Number of sequences of each length: int64 [D]."""
    pool_starts: NDArray[np.int64]
    """Where each length's ids begin in the pool array: int64 [D]."""
    first_bin: Numbers
    """First bin of each template, and the number of bins at the end: int32 or int64 [T + 1]."""
    first_run: Numbers
    """First run of each template, and the number of runs at the end: int32 or int64 [T + 1]."""
    run_length: ShortNumbers
    """Index into `lengths` of each run: uint16 or int32 [R]."""
    run_copies: ShortNumbers
    """k_t(L): how often the length occurs in the template: uint16 or int32 [R]."""
    run_first_draw: Numbers
    """first_draw[t][L]: draws of that length that earlier templates take: int32 or int64 [R]."""
    template_size: ShortNumbers
    """Number of sequences in each template: uint16 or int32 [T]."""
    lookup: NDArray[np.int32]
    """The template of bin b lies in [lookup[b >> lookup_shift], lookup[(b >> lookup_shift) + 1]]."""
    lookup_shift: int
    """See `lookup`."""
    max_sequences_per_bin: int
    """The most sequences in any template; 0 for a plan without bins."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    pool_size: int
    """Entries of the pool that `pool_starts` speaks of."""

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
        """What kernels read."""
        return PlanTables(*(getattr(self, name) for name in PlanTables._fields))

    @cached_property
    def bin_tables(self) -> BinTables:
        """What kernels read to find bins."""
        return BinTables(*(getattr(self, name) for name in BinTables._fields))

    @cached_property
    def draw_tables(self) -> DrawTables:
        """What kernels read to draw the ids of bins that are found."""
        return DrawTables(*(getattr(self, name) for name in DrawTables._fields))

    @cached_property
    def run_tables(self) -> RunTables:
        """What kernels read on the way back; made when it is first asked for, since streams never need it."""
        num_templates, num_lengths = len(self.template_size), len(self.lengths)
        by_length = np.argsort(self.run_length, kind="stable")
        return RunTables(
            run_template=np.repeat(np.arange(num_templates, dtype=np.int32), np.diff(self.first_run)),
            runs_by_length=by_length.astype(np.int32),
            first_by_length=np.searchsorted(self.run_length[by_length], np.arange(num_lengths + 1)),
        )

    def as_counts(self) -> Counter[int]:
        """Returns length → number of sequences, ascending by length.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).as_counts()
            Counter({1: 2, 3: 2})
        """
        return Counter(dict(zip(self.lengths.tolist(), self.counts.tolist(), strict=True)))

    def as_templates(self) -> Counter[Template]:
        """Returns template → multiplicity, in canonical order.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).as_templates()
            Counter({(3, 1): 2})
        """
        lengths = np.repeat(self.lengths[self.run_length], self.run_copies).tolist()
        ends = np.cumsum(self.template_size, dtype=np.int64).tolist()
        multiplicities = np.diff(self.first_bin).tolist()
        return Counter(
            {
                tuple(lengths[begin:end]): multiplicity
                for begin, end, multiplicity in zip([0, *ends[:-1]], ends, multiplicities, strict=True)
            }
        )

    def template_costs(self, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of a bin of each template, Σ (cost_linear · L + L²) over its lengths L: int64 [T]."""
        lengths = self.lengths.astype(np.int64)[self.run_length]
        sums = np.concatenate(([0], np.cumsum(self.run_copies * (cost_linear * lengths + lengths**2))))
        return np.diff(sums[self.first_run])

    @property
    def is_wide(self) -> bool:
        """Whether its tables are as wide as those of the largest plans."""
        return self.first_bin.dtype == _WIDE[0]

    def widened(self) -> "PlanIndex":
        """Returns the plan with tables as those of the largest plans.

        Example:
            >>> PlanIndex.build({(3, 1): 2}, {3: 2, 1: 2}, 4).widened().first_bin.dtype
            dtype('int64')
        """
        number, short = _WIDE
        return replace(
            self,
            first_bin=self.first_bin.astype(number),
            first_run=self.first_run.astype(number),
            run_length=self.run_length.astype(short),
            run_copies=self.run_copies.astype(short),
            run_first_draw=self.run_first_draw.astype(number),
            template_size=self.template_size.astype(short),
        )

    @classmethod
    def build(cls, templates: Mapping[Template, int], counts: Mapping[int, int], max_seq_len: int) -> "PlanIndex":
        """Lays out a plan.

        Args:
            templates: template → multiplicity.
            counts: length in tokens → number of sequences.
            max_seq_len: a bin's capacity in tokens.

        Raises:
            ValueError: a template is not a descending tuple of at most max_seq_len tokens, or the plan does not use
                every sequence exactly once; the message names the template or length.
        """
        lengths = np.array(sorted(length for length, count in counts.items() if count), dtype=np.int32)
        index_of = {int(length): i for i, length in enumerate(lengths)}
        counts_array = np.array([counts[int(length)] for length in lengths], dtype=np.int64)
        drawn = [0] * len(lengths)
        first_bin, first_run, sizes = [0], [0], []
        runs: list[tuple[int, int, int]] = []
        for template, multiplicity in canonical_templates(templates):
            if not template or multiplicity < 1 or any(a < b for a, b in pairwise(template)):
                raise ValueError(
                    f"template {list(template)[:8]} × {multiplicity} is not a descending list of lengths used at "
                    "least once"
                )
            if sum(template) > max_seq_len:
                raise ValueError(f"template {list(template)[:8]} has {sum(template)} tokens, over {max_seq_len}")
            for length, group in groupby(template):
                if length not in index_of:
                    raise ValueError(f"template {list(template)[:8]} uses length {length}, which no sequence has")
                copies = sum(1 for _ in group)
                index = index_of[length]
                runs.append((index, copies, drawn[index]))
                drawn[index] += copies * multiplicity
            first_bin.append(first_bin[-1] + multiplicity)
            first_run.append(len(runs))
            sizes.append(len(template))
        for index, length in enumerate(lengths.tolist()):
            if drawn[index] != counts[length]:
                raise ValueError(
                    f"the templates use {drawn[index]} sequences of length {length}, but there are {counts[length]}"
                )
        run_table = np.array(runs, dtype=np.int64).reshape(-1, 3)
        most_short = max(len(lengths), max(sizes, default=0))
        is_narrow = int(counts_array.sum()) < 2**31 and most_short < 2**16
        number, short = _NARROW if is_narrow else _WIDE
        first_bin_array = np.array(first_bin, dtype=np.int64)
        shift = max(0, first_bin[-1].bit_length() - len(sizes).bit_length() - _LOOKUP_BITS)
        edges = np.arange((first_bin[-1] >> shift) + 2, dtype=np.int64) << shift
        lookup = np.searchsorted(first_bin_array, edges, side="right") - 1
        return cls(
            lengths=lengths,
            counts=counts_array,
            pool_starts=np.concatenate(([0], np.cumsum(counts_array)))[:-1].astype(np.int64),
            first_bin=first_bin_array.astype(number),
            first_run=np.array(first_run, dtype=number),
            run_length=run_table[:, 0].astype(short),
            run_copies=run_table[:, 1].astype(short),
            run_first_draw=run_table[:, 2].astype(number),
            template_size=np.array(sizes, dtype=short),
            lookup=np.minimum(lookup, max(len(sizes) - 1, 0)).astype(np.int32),
            lookup_shift=shift,
            max_sequences_per_bin=max(sizes, default=0),
            max_seq_len=max_seq_len,
            pool_size=int(counts_array.sum()),
        )
