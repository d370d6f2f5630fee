"""What the epoch's tests share: small prepared epochs, and oracles that follow the definitions word by word.

Owns the oracles: `Twin` (a permutation in Python integers), `Prepared.bin_at` (a bin by the formulas of
ARCHITECTURE.md) and `Prepared.windowed` (an epoch in locality windows, by the times of its bins). No oracle shares a
line with the kernels.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import strategies as st

from packhorse.epoch import EpochView, Permutation, PlanIndex, derive_key
from packhorse.packing import canonical_templates, pack_histogram

MASK_64 = 2**64 - 1


class Twin:
    """σ on [0, size) in Python integers, written from the docstring of `packhorse.epoch.permutation`."""

    def __init__(self, size, key, tweak=0):
        bits = (size - 1).bit_length()
        self.size = size
        self.half_bits = bits // 2
        self.num_columns = 1 << self.half_bits
        self.num_lines = -(-size // self.num_columns)
        self.passes = 1 if size >= 4096 else 2 if size >= 16 else 5
        keys = self.splitmix(self.splitmix(key ^ self.splitmix(tweak + 0x9E3779B97F4A7C15)) + 0x9E3779B97F4A7C15)
        self.key, self.step = keys % 2**32, keys // 2**32 | 1

    @staticmethod
    def splitmix(value):
        value &= MASK_64
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
        return value ^ (value >> 31)

    @staticmethod
    def hash_half(half, key):
        value = (half ^ key) * 0x7FEB352D % 2**32
        return (value ^ (value >> 15)) * 0x846CA68B % 2**32

    def round_key(self, number):
        return (self.key + number * self.step) % 2**32

    def once(self, x):
        """A bijection of the rectangle."""
        line, column = divmod(x, self.num_columns)
        for number in range(0, 6 * self.passes, 2):
            turn = self.hash_half(column, self.round_key(number)) * self.num_lines // 2**32
            line = (line + turn) % self.num_lines
            column ^= self.hash_half(line, self.round_key(number + 1)) // 2 // 2 ** (31 - self.half_bits)
        return line * self.num_columns + column

    def __call__(self, x):
        x = self.once(x)
        while x >= self.size:
            x = self.once(x)
        return x


@dataclass(frozen=True)
class Prepared:
    """A plan with a pool, as a prepared folder holds them."""

    counts: dict
    max_seq_len: int
    limit: int
    templates: dict
    pool: np.ndarray
    plan: PlanIndex

    @classmethod
    def of(cls, counts, max_seq_len, limit=None, dtype=np.int64):
        """Plans the counts; ids are distinct and scattered, ascending within each length."""
        counts = {length: count for length, count in sorted(counts.items()) if count}
        total = sum(counts.values())
        ids = np.random.default_rng(total).choice(10 * total + 1, total, replace=False)
        ends = np.cumsum([0, *counts.values()])
        pool = np.concatenate([np.empty(0, np.int64), *(np.sort(ids[a:b]) for a, b in pairwise(ends))])
        templates = pack_histogram(counts, max_seq_len, max_sequences_per_bin=limit).templates
        return cls(
            counts=counts,
            max_seq_len=max_seq_len,
            limit=limit or max_seq_len,
            templates=templates,
            pool=pool.astype(dtype),
            plan=PlanIndex.build(templates, counts, max_seq_len),
        )

    def view(self, seed=0, epoch=0):
        return EpochView(self.plan, self.pool, seed=seed, epoch=epoch)

    def bin_at(self, position, seed, epoch):
        """The ids and lengths of the bin at a position, straight from the definition."""
        ordered = canonical_templates(self.templates)
        bin_number = Permutation(sum(m for _, m in ordered), derive_key(seed, epoch, "bins"))(position)
        first_bin = 0
        first_draw = dict.fromkeys(self.counts, 0)
        for template, multiplicity in ordered:
            if bin_number < first_bin + multiplicity:
                break
            first_bin += multiplicity
            for length in template:
                first_draw[length] += multiplicity
        copy = bin_number - first_bin
        ids = []
        for slot, length in enumerate(template):
            j = template[:slot].count(length)
            draw = first_draw[length] + copy * template.count(length) + j
            shuffled = Permutation(self.counts[length], derive_key(seed, epoch, "pool"), tweak=length)(draw)
            first_of_pool = sum(count for other, count in self.counts.items() if other < length)
            ids.append(int(self.pool[first_of_pool + shuffled]))
        return ids, list(template)

    def windowed(self, seed, epoch, num_windows):
        """Every bin of the epoch in locality windows, as (ids, lengths), straight from the definition."""
        key = derive_key(seed, epoch, "window times")
        copies = [[] for _ in range(num_windows)]
        for t, (template, multiplicity) in enumerate(canonical_templates(self.templates)):
            word = Twin.splitmix(key ^ Twin.splitmix(t + 0x9E3779B97F4A7C15)) >> 32
            u = 1 - Fraction((word * num_windows >> 32) + 1, num_windows)
            for i in range(multiplicity):
                copies[floor((i + u) / multiplicity * num_windows)].append(template)
        firsts = np.cumsum([0, *self.counts.values()]).tolist()
        rest = {n: self.pool[a:b].tolist() for n, (a, b) in zip(self.counts, pairwise(firsts), strict=True)}
        windows = []
        for window, templates in enumerate(copies):
            drawn = {}
            for length in self.counts:
                num = sum(template.count(length) for template in templates)
                taken, rest[length] = rest[length][:num], rest[length][num:]
                shuffle = Permutation(max(num, 1), derive_key(seed, epoch, "pool"), tweak=length + window * 2**32)
                drawn[length] = iter([taken[shuffle(c)] for c in range(num)])
            bins = [([int(next(drawn[n])) for n in template], list(template)) for template in templates]
            order = Permutation(max(len(bins), 1), derive_key(seed, epoch, "bins"), tweak=window)
            windows.append([bins[order(p)] for p in range(len(bins))])
        order = Permutation(num_windows, derive_key(seed, epoch, "window order"))
        return [one for w in range(num_windows) for one in windows[order(w)]]


@st.composite
def prepared_epochs(draw):
    """(Prepared, seed, epoch) of up to about a hundred sequences."""
    max_seq_len = draw(st.integers(1, 40))
    counts = draw(st.dictionaries(st.integers(1, max_seq_len), st.integers(1, 12), min_size=1, max_size=8))
    limit = draw(st.none() | st.integers(1, 6))
    dtype = draw(st.sampled_from([np.uint32, np.int64]))
    numbers = st.integers(0, 2**64 - 1)
    return Prepared.of(counts, max_seq_len, limit, dtype), draw(numbers), draw(numbers)


@pytest.fixture(scope="session")
def epochs():
    """Strategy: see `prepared_epochs`."""
    return prepared_epochs()


@pytest.fixture(scope="session")
def prepared():
    """`Prepared.of`."""
    return Prepared.of


@pytest.fixture(scope="session")
def twin():
    """The class `Twin`."""
    return Twin


@pytest.fixture(scope="session")
def bins_of():
    """From `Bins` to a list of (position, ids, lengths), one for each bin."""

    def split(bins):
        ends = bins.bin_ends.tolist()
        assert len(ends) == len(bins.positions)
        assert (ends[-1] if ends else 0) == len(bins.ids) == len(bins.lengths)
        return [
            (position, tuple(bins.ids[start:end].tolist()), tuple(bins.lengths[start:end].tolist()))
            for position, start, end in zip(bins.positions.tolist(), [0, *ends], ends, strict=False)
        ]

    return split
