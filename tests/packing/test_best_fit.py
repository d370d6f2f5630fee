"""Best-fit on groups of equal bins against best-fit on single sequences, and its cost against the counts.

Owns what `pack_histogram` plans; leaves what it refuses to test_checks and the bound to test_bounds.
"""

import heapq
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packhorse.packing import best_fit, canonical_templates, counts_of_templates, pack_histogram

BILLIONS = 3_000_000_000


def best_fit_of_single_sequences(counts, max_seq_len, limit=None):
    """Longest first, each into the fullest bin that takes it; of equally full ones into that touched first."""
    bins = []  # [room, stamp of the last placement, lengths]
    lengths = sorted((length for length, count in counts.items() for _ in range(count)), reverse=True)
    for stamp, length in enumerate(lengths):
        fitting = [b for b in bins if b[0] >= length and (limit is None or len(b[2]) < limit)]
        if fitting:
            chosen = min(fitting, key=lambda b: (b[0], b[1]))
        else:
            chosen = [max_seq_len, 0, []]
            bins.append(chosen)
        chosen[0] -= length
        chosen[1] = stamp
        chosen[2].append(length)
    return Counter(tuple(b[2]) for b in bins)


@st.composite
def histograms(draw):
    max_seq_len = draw(st.integers(1, 60))
    counts = draw(st.dictionaries(st.integers(1, max_seq_len), st.integers(0, 15), max_size=12))
    limit = draw(st.none() | st.integers(1, 8))
    return counts, max_seq_len, limit


@given(histograms())
@example(({7: 5, 5: 5, 3: 9, 2: 9, 1: 9}, 12, 3))
@settings(max_examples=400)
def test_same_bins_as_single_sequences(histogram):
    counts, max_seq_len, limit = histogram
    plan = pack_histogram(counts, max_seq_len, max_sequences_per_bin=limit, algorithm="best-fit")
    assert plan.templates == best_fit_of_single_sequences(counts, max_seq_len, limit)


def test_equally_full_bins_are_told_apart_by_their_last_placement():
    """The bins (9) and (5, 4) both have room for 3 tokens; (9) was touched first and takes the 2."""
    assert pack_histogram({9: 1, 5: 1, 4: 1, 2: 1}, 12, algorithm="best-fit").templates == Counter(
        {(9, 2): 1, (5, 4): 1}
    )


@given(histograms())
@settings(max_examples=100)
def test_plan_uses_every_sequence_once_and_keeps_its_limits(histogram):
    counts, max_seq_len, limit = histogram
    plan = pack_histogram(counts, max_seq_len, max_sequences_per_bin=limit, algorithm="best-fit")
    used = {length: count for length, count in counts.items() if count}
    assert counts_of_templates(plan.templates) == used
    assert plan.num_sequences == sum(used.values())
    assert plan.total_tokens == sum(length * count for length, count in used.items())
    for template, multiplicity in plan.templates.items():
        assert list(template) == sorted(template, reverse=True)
        assert sum(template) <= max_seq_len
        assert limit is None or len(template) <= limit
        assert multiplicity >= 1
    assert plan.num_bins >= plan.lower_bound
    assert plan.algorithm == "best-fit"
    assert plan.max_seq_len == max_seq_len
    if used:
        assert plan.efficiency == pytest.approx(plan.total_tokens / plan.num_bins / max_seq_len)
        assert plan.gap == pytest.approx(plan.num_bins / plan.lower_bound - 1)
    else:
        assert (plan.num_bins, plan.efficiency, plan.gap) == (0, 0.0, 0.0)


def test_canonical_order_is_descending_and_independent_of_insertion():
    plan = pack_histogram({5: 3, 4: 4, 3: 7, 1: 2}, 9, algorithm="best-fit")
    pairs = canonical_templates(plan.templates)
    assert [template for template, _ in pairs] == sorted(plan.templates, reverse=True)
    assert canonical_templates(dict(reversed(list(plan.templates.items())))) == pairs


@given(histograms())
@settings(max_examples=50)
def test_plan_does_not_depend_on_the_order_of_counts(histogram):
    counts, max_seq_len, limit = histogram
    turned = dict(reversed(list(counts.items())))
    plan = pack_histogram(counts, max_seq_len, max_sequences_per_bin=limit, algorithm="best-fit")
    other = pack_histogram(turned, max_seq_len, max_sequences_per_bin=limit, algorithm="best-fit")
    assert canonical_templates(plan.templates) == canonical_templates(other.templates)


def distribution(name, num_lengths, total):
    """A histogram over all lengths in [1, num_lengths], of about `total` sequences."""
    lengths = np.arange(1, num_lengths + 1)
    weights = {
        "uniform": np.ones(num_lengths),
        "lognormal": np.exp(-((np.log(lengths) - np.log(num_lengths / 4)) ** 2) / 2) / lengths,
        "exponential": np.exp(-lengths / (num_lengths / 5)),
        "mostly long": lengths.astype(float) ** 3,
        "two peaks": np.exp(-(((lengths - num_lengths * 0.4) / 90) ** 2))
        + np.exp(-(((lengths - num_lengths * 0.7) / 90) ** 2))
        + 1e-7,
    }[name]
    noise = np.random.default_rng(17).uniform(0.5, 1.5, num_lengths)
    shares = weights * noise / (weights * noise).sum()
    return {int(length): max(1, int(share * total)) for length, share in zip(lengths, shares, strict=True)}


@pytest.mark.parametrize("name", ["uniform", "lognormal", "exponential", "mostly long", "two peaks"])
def test_at_most_three_templates_per_length_of_billions(name):
    counts = distribution(name, 2048, BILLIONS)
    plan = pack_histogram(counts, 2048, algorithm="best-fit")
    assert len(plan.templates) <= 3 * len(counts)
    assert counts_of_templates(plan.templates) == counts
    assert plan.num_bins >= plan.lower_bound


@pytest.mark.parametrize("limit", [None, 6])
def test_cost_does_not_grow_with_counts(monkeypatch, limit):
    """Heap pushes are the packer's unit of work: 10^9 times the sequences need no more than a few of them more."""
    pushes = Counter()

    def heappush(heap, item):
        pushes[scale] += 1
        heapq.heappush(heap, item)

    monkeypatch.setattr(best_fit, "heapq", SimpleNamespace(heappush=heappush, heappop=heapq.heappop))
    counts = distribution("lognormal", 512, 100_000)
    for scale in (1, 10**9, 10**18):
        scaled = {length: count * scale for length, count in counts.items()}
        plan = pack_histogram(scaled, 512, max_sequences_per_bin=limit, algorithm="best-fit")
        assert counts_of_templates(plan.templates) == scaled
        assert len(plan.templates) <= 3 * len(counts)
    # A group's room at least halves whenever a length fills it: log2(max_seq_len) visits for each of two new groups.
    assert max(pushes.values()) <= 2 * len(counts) * 10
    assert max(pushes.values()) <= 2 * pushes[1]


@pytest.mark.parametrize("n", [1, 10**9, 2**32 + 1, 2**64 + 1, 10**30])
def test_structure_scales_with_counts(n):
    plan = pack_histogram({600: n, 500: 2 * n, 400: n}, 1000, algorithm="best-fit")
    assert plan.templates == Counter({(600, 400): n, (500, 500): n})
    assert plan.lower_bound == plan.num_bins == 2 * n
    assert (plan.efficiency, plan.gap) == (1.0, 0.0)
