"""The histogram packers against plain ones that place sequence by sequence, seqpack's, and published figures."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import seqpack
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import (
    PACKERS,
    counts_of_templates,
    lower_bound,
    pack_histogram,
    pack_length_histogram,
    pack_length_histogram_batched,
)

FAST = sorted({*PACKERS} - {"optimal"})


def one_by_one(lengths, capacity, limit, choose):
    """Longest first, each into the bin that `choose` prefers (smallest), of those with room for it."""
    bins = []  # [room, order of opening, last touched, lengths]
    for stamp, length in enumerate(sorted(lengths, reverse=True)):
        fitting = [b for b in bins if b[0] >= length and len(b[3]) < limit]
        if fitting:
            chosen = min(fitting, key=choose)
        else:
            chosen = [capacity, len(bins), stamp, []]
            bins.append(chosen)
        chosen[0] -= length
        chosen[2] = stamp
        chosen[3].append(length)
    return Counter(tuple(b[3]) for b in bins)


def knapsacks(lengths, capacity, limit):
    """Bin after bin, the longest that fits."""
    left = sorted(lengths)
    templates = Counter()
    while left:
        bin_lengths = []
        while len(bin_lengths) < limit and (fitting := [n for n in left if n <= capacity - sum(bin_lengths)]):
            bin_lengths.append(fitting[-1])
            left.remove(fitting[-1])
        templates[tuple(bin_lengths)] += 1
    return templates


def sorted_next_fit(lengths, capacity, limit):
    bins = []
    for length in sorted(lengths, reverse=True):
        if not bins or sum(bins[-1]) + length > capacity or len(bins[-1]) == limit:
            bins.append([])
        bins[-1].append(length)
    return Counter(map(tuple, bins))


def shortest_packs(lengths, capacity, limit):
    """Each length's sequences into the emptiest packs; what fits nowhere opens a pack each, none takes two at once."""
    packs = []
    counts = Counter(lengths)
    for length in sorted(counts, reverse=True):
        left = counts[length]
        while left:
            fitting = [p for p in packs if sum(p) + length <= capacity and len(p) < limit]
            if not fitting:
                packs.extend([length] for _ in range(left))
                break
            emptiest = max(fitting, key=lambda p: capacity - sum(p))
            emptiest.append(length)
            left -= 1
    return packs


ORACLES = {
    "first-fit": lambda n, c, k: one_by_one(n, c, k, lambda b: b[1]),
    "worst-fit": lambda n, c, k: one_by_one(n, c, k, lambda b: (-b[0], b[1])),
    "greedy-knapsack": knapsacks,
    "length-sorted": sorted_next_fit,
}


@st.composite
def histograms(draw, most_count=12):
    capacity = draw(st.integers(1, 60))
    counts = draw(st.dictionaries(st.integers(1, capacity), st.integers(0, most_count), max_size=10))
    return counts, capacity, draw(st.none() | st.integers(1, 7))


@pytest.mark.parametrize("algorithm", sorted(ORACLES))
@given(histogram=histograms())
@settings(max_examples=150)
def test_same_templates_as_one_by_one(algorithm, histogram):
    counts, capacity, limit = histogram
    plan = pack_histogram(counts, capacity, algorithm=algorithm, max_sequences_per_bin=limit)
    assert plan.templates == ORACLES[algorithm](list(Counter(counts).elements()), capacity, limit or capacity)
    assert plan.algorithm == algorithm


@given(histograms())
@settings(max_examples=150)
def test_greedy_knapsack_is_first_fit_decreasing(histogram):
    counts, capacity, limit = histogram
    plans = [
        pack_histogram(counts, capacity, algorithm=name, max_sequences_per_bin=limit).templates
        for name in ("greedy-knapsack", "first-fit")
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("algorithm", FAST)
@given(histogram=histograms())
@settings(max_examples=100)
def test_every_packer_keeps_the_rules(algorithm, histogram):
    counts, capacity, limit = histogram
    plan = pack_histogram(counts, capacity, algorithm=algorithm, max_sequences_per_bin=limit)
    assert counts_of_templates(plan.templates) == +Counter(counts)
    for template, multiplicity in plan.templates.items():
        assert multiplicity > 0
        assert list(template) == sorted(template, reverse=True)
        assert sum(template) <= capacity
        assert 1 <= len(template) <= (limit or capacity)
    assert plan.num_bins >= lower_bound(counts, capacity, max_sequences_per_bin=limit)


@given(histograms(most_count=40))
@settings(max_examples=300)
def test_worst_fit_templates_equal_seqpacks(histogram):
    counts, capacity, _ = histogram
    assert pack_length_histogram(counts, capacity) == seqpack.pack_length_histogram(counts, capacity)
    assert pack_length_histogram_batched(counts, capacity) == seqpack.pack_length_histogram_batched(counts, capacity)


@pytest.mark.parametrize("capacity", [512, 2048])
def test_worst_fit_templates_equal_seqpacks_on_many(capacity):
    lengths = np.clip(np.random.default_rng(capacity).lognormal(4, 1.5, 20_000), 1, capacity).astype(int)
    counts = Counter(lengths.tolist())
    assert pack_length_histogram(counts, capacity) == seqpack.pack_length_histogram(counts, capacity)
    assert pack_length_histogram_batched(counts, capacity) == seqpack.pack_length_histogram_batched(counts, capacity)


@given(histograms(most_count=6))
@settings(max_examples=100)
def test_shortest_pack_first_has_the_bins_of_single_packs(histogram):
    """Ties between equally empty packs change which lengths meet, so only what room there is can be compared."""
    counts, capacity, _ = histogram
    plan = pack_histogram(counts, capacity, algorithm="shortest-pack-first")
    packs = shortest_packs(list(Counter(counts).elements()), capacity, capacity)
    assert plan.num_bins == len(packs)
    assert sorted(map(sum, plan.templates.elements())) == sorted(map(sum, packs))


def wikipedia_counts():
    path = Path(__file__).parents[1] / "data" / "wikipedia_512_histogram.json"
    return {i + 1: count for i, count in enumerate(json.loads(path.read_text()))}


@pytest.mark.parametrize(
    ("algorithm", "depth", "percent"),
    [
        ("shortest-pack-first", 12, 99.604),
        ("longest-pack-first", 12, 99.813),
        ("longest-pack-first", 3, 89.49),
        ("longest-pack-first", None, 99.949),
    ],
)
def test_published_efficiency(algorithm, depth, percent):
    plan = pack_histogram(wikipedia_counts(), 512, algorithm=algorithm, max_sequences_per_bin=depth)
    assert 100 * plan.efficiency == pytest.approx(percent, abs=0.006)


@pytest.mark.parametrize("algorithm", FAST)
def test_cost_does_not_grow_with_the_counts(algorithm):
    """10^15 sequences: nothing that goes sequence by sequence, or bin by bin, would come back."""
    counts = {length: 10**13 + length for length in range(1, 101)}
    plan = pack_histogram(counts, 100, algorithm=algorithm)
    assert counts_of_templates(plan.templates) == Counter(counts)
