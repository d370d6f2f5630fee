"""The histogram packers: rules that all keep, and worst-fit against a plain one and seqpack's."""

from collections import Counter

import numpy as np
import pytest
import seqpack
from hypothesis import given, settings
from tests.packing.histograms import histograms, one_by_one

from packhorse.packing import (
    PACKERS,
    counts_of_templates,
    lower_bound,
    pack_histogram,
    pack_length_histogram,
    pack_length_histogram_batched,
)

FAST = sorted({*PACKERS} - {"optimal"})


@given(histograms())
@settings(max_examples=150)
def test_worst_fit_has_the_templates_of_one_by_one(histogram):
    counts, capacity, limit = histogram
    plan = pack_histogram(counts, capacity, algorithm="worst-fit", max_sequences_per_bin=limit)
    lengths = list(Counter(counts).elements())
    assert plan.templates == one_by_one(lengths, capacity, limit or capacity, lambda b: (-b[0], b[1]))
    assert plan.algorithm == "worst-fit"


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


@pytest.mark.parametrize("algorithm", FAST)
def test_cost_does_not_grow_with_the_counts(algorithm):
    """10^15 sequences: nothing that goes sequence by sequence, or bin by bin, would come back."""
    counts = {length: 10**13 + length for length in range(1, 101)}
    plan = pack_histogram(counts, 100, algorithm=algorithm)
    assert counts_of_templates(plan.templates) == Counter(counts)
