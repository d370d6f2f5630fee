"""Epochs of sources that are made of sources, as plain lists, built bin by bin.

Each class says the same twice: `source_of(epoch)` is the source that is tested, `lists(epoch)` what it has to hold.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, lcm

import numpy as np

from packhorse.epoch import (
    Component,
    JoinedSource,
    Mixture,
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
        run, due = [], [Fraction(0)] * len(self.parts)
        for (weights, _), first, until in zip(self.stages, firsts, [*firsts[1:], end], strict=True):
            weights = [Fraction(str(w)) for w in weights]
            debts = [floor(each * 2**32) - run.count(d) * 2**32 for d, each in enumerate(due)]
            key = derive_key(self.seed, 0, f"mixture {first}")
            run += SplitTree(weights, debts, key).dealt(max(min(until, end) - first, 0))
            due = [
                Fraction(round(each * 2**32), 2**32) + weight / sum(weights) * (until - first)
                for each, weight in zip(due, weights, strict=True)
            ]
        return [component for component in run[begin:end] for _ in range(self.bins_per_draw)]


class SplitTree:
    """Who gets which position, cell by cell; what `_split` and `_split_tree` say of cells, strata and the tree."""

    def __init__(self, weights, debts, key):
        scale = lcm(*(w.denominator for w in weights))
        parts = [int(w * scale) for w in weights]
        parts = [part // gcd(*parts) for part in parts]
        nodes = [(part, d) for d, part in enumerate(parts) if part]
        trees = [(part, order, ("leaf", d), debts[d]) for order, (part, d) in enumerate(nodes)]
        for number in range(len(nodes) - 1):
            lesser, greater = sorted(trees)[:2]
            owed = Fraction(lesser[3]) - Fraction(lesser[0], lesser[0] + greater[0]) * (lesser[3] + greater[3])
            key_of = mixed(key ^ mixed(number + GOLDEN))
            tree = ("split", lesser[2], greater[2], lesser[0], lesser[0] + greater[0], owed / 2**32, key_of)
            trees = sorted(trees)[2:]
            trees.append((lesser[0] + greater[0], len(nodes) + number, tree, lesser[3] + greater[3]))
        self.root = trees[0][2]

    def dealt(self, num, node=None):
        node = node or self.root
        if node[0] == "leaf":
            return [node[1]] * num
        _, lesser, greater, part, whole, owed, key = node
        is_lesser = split(part, whole, owed, key, num)
        of_lesser = iter(self.dealt(sum(is_lesser), lesser))
        of_greater = iter(self.dealt(num - sum(is_lesser), greater))
        return [next(of_lesser if each else of_greater) for each in is_lesser]


GOLDEN = 0x9E3779B97F4A7C15


def mixed(value):
    """splitmix64's finaliser."""
    value %= 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def split(part, whole, owed, key, num):
    """Whether each of so many cells is the lesser's."""
    scale = 59 - whole.bit_length()
    part, whole = (part * 2**59 // whole, 2**59) if scale < 0 else (part << scale, whole << scale)
    debt, forced = floor(owed * whole), 0
    while debt >= whole:
        debt, forced = debt + part - whole, forced + 1

    def first_cell(stratum):
        return -((debt - stratum * whole) // part)

    def cell_of(stratum):
        if stratum < 0:
            return None
        begin, end = first_cell(stratum), first_cell(stratum + 1)
        rest, over = debt + begin * part - stratum * whole, debt + end * part - (stratum + 1) * whole
        word = mixed(key ^ (stratum * GOLDEN % 2**64))
        at, which = (word >> 32) * 2.0**-32 * whole, word % 2**32 * 2.0**-32
        if stratum == 0 and debt > 0:  # begun before: any of the cells that are left
            return min(int(which * end), end - 1)
        if over and at >= whole - (part - over):
            return end - 1
        wants_first = at * (whole - part + rest) < float(rest) * whole
        if rest and wants_first and cell_of(stratum - 1) != begin - 1:  # which may have given it
            return begin - 1
        inner = end - begin - (over > 0)
        return begin + min(int(which * inner), inner - 1)

    cells, stratum = set(), 0
    while first_cell(stratum) - 1 < num:
        cells.add(cell_of(stratum))
        stratum += 1
    return ([True] * forced + [cell in cells for cell in range(num)])[:num]
