"""The published packers against plain ones that place sequence by sequence, and published figures."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.packing.histograms import histograms, one_by_one

from packhorse.packing import PACKERS, pack_histogram
from packhorse.reference_packers import REFERENCE_PACKERS


def test_the_registry_has_every_one():
    """What it names and this package lacks, the property tests of every packer find."""
    assert REFERENCE_PACKERS.keys() <= PACKERS.keys()


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
    "greedy-knapsack": knapsacks,
    "length-sorted": sorted_next_fit,
}


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
    path = Path(__file__).parents[2] / "data" / "wikipedia_512_histogram.json"
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
