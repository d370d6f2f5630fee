"""Epochs of sources that are made of sources, as plain lists, built bin by bin.

Each class says the same twice: `source_of(epoch)` is the source that is tested, `lists(epoch)` what it has to hold.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor, gcd, lcm

import numpy as np

from packhorse.epoch import (
    Component,
    JoinedSource,
    Mixture,
    Permutation,
    SkipSource,
    Stage,
    WindowedView,
    derive_key,
)
from packhorse.topology import Skips


@dataclass(frozen=True)
class Leaf:
    """A prepared dataset's epochs, in windows where num_windows is given."""

    small: object
    seed: int
    num_windows: int | None
    num_datasets = 1

    def source_of(self, epoch):
        if self.num_windows is None:
            return self.small.view(self.seed, epoch)
        return WindowedView(self.small.plan, self.small.pool, seed=self.seed, epoch=epoch, num_windows=self.num_windows)

    def lists(self, epoch):
        """(dataset, ids, lengths) of every bin; test_view and test_windows prove these."""
        bins = self.source_of(epoch).bins(np.arange(self.small.plan.num_bins))
        parts = (np.split(array, bins.bin_ends[:-1]) for array in (bins.ids, bins.lengths))
        return [(0, ids.tolist(), lengths.tolist()) for ids, lengths in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Skipped:
    inner: object
    ranges: tuple

    @property
    def num_datasets(self):
        return self.inner.num_datasets

    def source_of(self, epoch):
        return SkipSource(self.inner.source_of(epoch), Skips.of(self.ranges))

    def lists(self, epoch):
        skipped = {p for a, b in self.ranges for p in range(a, b)}
        return [one for p, one in enumerate(self.inner.lists(epoch)) if p not in skipped]


@dataclass(frozen=True)
class Joined:
    """Bins of `inner`, so many in a row; `rows` tells of every sequence which of them it came from."""

    inner: object
    rows_per_bin: int
    num_datasets = 1

    def source_of(self, epoch):
        return JoinedSource(self.inner.source_of(epoch), self.rows_per_bin)

    def lists(self, epoch):
        return [(0, ids, lengths) for ids, lengths, _ in self.with_rows(epoch)]

    def with_rows(self, epoch):
        short = [(ids, lengths) for _, ids, lengths in self.inner.lists(epoch)]
        runs = [short[p : p + self.rows_per_bin] for p in range(0, len(short), self.rows_per_bin)]
        return [
            (
                [i for ids, _ in run for i in ids],
                [n for _, lengths in run for n in lengths],
                [row for row, (ids, _) in enumerate(run) for _ in ids],
            )
            for run in runs
        ]


@dataclass(frozen=True)
class Mixed:
    parts: tuple
    stages: tuple
    """(weights, until) of each stage."""
    seed: int
    num_bins: int
    bins_per_draw: int = 1

    @property
    def num_datasets(self):
        return sum(part.num_datasets for part in self.parts)

    def mixture(self):
        components = [
            Component.of(f"c{d}", part.source_of, num_datasets=part.num_datasets) for d, part in enumerate(self.parts)
        ]
        stages = [Stage({f"c{d}": w for d, w in enumerate(weights)}, until) for weights, until in self.stages]
        return Mixture(components, stages, seed=self.seed, num_bins=self.num_bins, bins_per_draw=self.bins_per_draw)

    def source_of(self, epoch):
        return self.mixture().epoch(epoch)

    def lists(self, epoch):
        """Goes through the whole run, bin by bin; every component gives what comes next in its own epochs."""
        given = [self._endless(d) for d in range(len(self.parts))]
        run = [next(given[d]) for e in range(epoch + 1) for d in self.dealt(e)]
        return run[epoch * self.num_bins :]

    def _endless(self, d):
        first = sum(part.num_datasets for part in self.parts[:d])
        epoch = 0
        while True:
            yield from ((first + dataset, ids, lengths) for dataset, ids, lengths in self.parts[d].lists(epoch))
            epoch += 1

    def dealt(self, epoch):
        """The component of every position of an epoch."""
        per_epoch = self.num_bins // self.bins_per_draw
        begin, end = epoch * per_epoch, (epoch + 1) * per_epoch
        firsts = [0, *(until // self.bins_per_draw for _, until in self.stages[:-1])]
        run = []
        for (weights, _), first, until in zip(self.stages, firsts, [*firsts[1:], end], strict=True):
            run += self.stage(weights, first, min(until, end), per_epoch)
        return [component for component in run[begin:] for _ in range(self.bins_per_draw)]

    def stage(self, weights, first, until, per_epoch):
        """The component of every draw of a stage, in runs of epochs in which each component is due."""
        shares = [Fraction(str(w)) for w in weights if w]
        together = 1
        while min(shares) / sum(shares) * together * per_epoch < 1:
            together += 1
        dealt, at = [], first
        while at < until:
            first_epoch = at // (together * per_epoch) * together
            begin, end = first_epoch * per_epoch, (first_epoch + together) * per_epoch
            key = derive_key(self.seed, first_epoch, "mixture")
            dealt += self.segment(weights, at - first, end - at, key, at - begin)
            at = end
        return dealt[: max(until - first, 0)]

    @staticmethod
    def segment(weights, due_before, length, key, tweak):
        weights = [Fraction(str(w)) for w in weights]
        scale = lcm(*(w.denominator for w in weights))
        parts = [int(w * scale) for w in weights]
        whole = sum(parts) // gcd(*parts)
        block = 1
        if whole <= 65536:
            block = whole
            while block < 1024:
                block += whole
        else:
            least = min(w for w in weights if w) / sum(weights)
            while block < 1024 or least * block < 1:
                block *= 2
        up_to = [sum(weights[:d], Fraction(0)) / sum(weights) for d in range(len(weights) + 1)]
        edges = [*range(0, max(length // block, 1) * block, block), length]
        components = []
        for start, stop in pairwise(edges):
            up_to_stop, up_to_start = ([floor(share * (due_before + at)) for share in up_to] for at in (stop, start))
            ends = [b - a for a, b in zip(up_to_start, up_to_stop, strict=True)]
            counts = [b - a for a, b in pairwise(ends)]
            assert min(counts) >= 0
            slots = [d for d, count in enumerate(counts) for _ in range(count)]
            order = Permutation(stop - start, key, tweak + start).forward(np.arange(stop - start))
            components += [slots[o] for o in order.tolist()]
        return components
