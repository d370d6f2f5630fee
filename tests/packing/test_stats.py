"""`PackingStats` against seqpack's, against NumPy's percentiles, and its bound and gap."""

from collections import Counter

import numpy as np
import pytest
import seqpack
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import PackingStats, lower_bound, pack_histogram

FIELDS = (
    "n_bins",
    "n_sequences",
    "total_tokens",
    "total_capacity",
    "padding_tokens",
    "efficiency",
    "padding_ratio",
    "max_seq_len",
)
PERCENTILES = {"bin_fullness_p50": 50, "bin_fullness_p90": 90, "bin_fullness_p99": 99}


def random_bins(seed):
    """Lengths and bins that a packer of seqpack made of them."""
    rng = np.random.default_rng(seed)
    max_seq_len = int(rng.integers(16, 3000))
    num = int(rng.integers(1, 400))
    lengths = np.clip(rng.lognormal(4, 1.2, num), 1, max_seq_len).astype(int).tolist()
    return seqpack.greedy_pack_sequences(lengths, max_seq_len), lengths, max_seq_len


@pytest.mark.parametrize("seed", range(20))
def test_from_bins_has_the_fields_and_lines_of_seqpack(seed):
    bins, lengths, max_seq_len = random_bins(seed)
    ours = PackingStats.from_bins(bins, lengths, max_seq_len)
    theirs = seqpack.PackingStats.from_bins(bins, lengths, max_seq_len)
    for name in FIELDS:
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in PERCENTILES:
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-12), name
    lines = repr(ours).splitlines()
    assert lines[:-2] == repr(theirs).splitlines()[:-1]
    assert lines[-2].startswith("  lower bound: ")
    assert lines[-1] == ")"


@given(st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 40)), min_size=1))
@settings(max_examples=150)
def test_from_templates_equals_its_bins_written_out(pairs):
    templates = Counter()
    for template, multiplicity in pairs:
        templates[tuple(sorted(template, reverse=True))] += multiplicity
    max_seq_len = 36
    ours = PackingStats.from_templates(templates, max_seq_len)
    theirs = seqpack.PackingStats.from_templates(templates, max_seq_len)
    for name in FIELDS:
        assert getattr(ours, name) == getattr(theirs, name), name
    sums = [sum(template) for template, multiplicity in templates.items() for _ in range(multiplicity)]
    for name, percent in PERCENTILES.items():
        assert getattr(ours, name) == pytest.approx(np.percentile(sums, percent) / max_seq_len, rel=1e-12), name
    lengths = [length for template in templates.elements() for length in template]
    ends = np.cumsum([len(template) for template in templates.elements()]).tolist()
    bins = [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
    assert PackingStats.from_bins(bins, lengths, max_seq_len) == ours


def test_interpolated_median_is_not_that_of_seqpack():
    """Between 2 and 8 tokens NumPy's median is 5; seqpack's from_templates takes one of the two."""
    stats = PackingStats.from_templates({(2,): 1, (8,): 1}, 10)
    assert stats.bin_fullness_p50 == 0.5


def test_bound_and_gap():
    templates = {(6,): 2, (4,): 2}  # two bins would do
    stats = PackingStats.from_templates(templates, 10)
    assert stats.lower_bound == lower_bound({6: 2, 4: 2}, 10) == 2
    assert stats.gap == 1.0
    assert "  lower bound: 2 bins (gap 100.0000%)\n" in repr(stats)
    limited = PackingStats.from_templates(templates, 10, max_sequences_per_bin=1)
    assert (limited.lower_bound, limited.gap) == (4, 0.0)
    bins = PackingStats.from_bins([[0], [1], [2], [3]], [6, 6, 4, 4], 10, max_sequences_per_bin=1)
    assert bins == limited


def test_agrees_with_the_plan():
    plan = pack_histogram(
        {900: 10**9, 300: 2 * 10**9, 120: 7}, 1024, algorithm="best-fit"
    )  # whose bound needs nothing but counts
    stats = PackingStats.from_templates(plan.templates, np.int32(1024))
    assert (stats.n_bins, stats.n_sequences, stats.total_tokens) == (
        plan.num_bins,
        plan.num_sequences,
        plan.total_tokens,
    )
    assert stats.total_capacity == plan.num_bins * 1024
    assert (stats.efficiency, stats.gap, stats.lower_bound) == (plan.efficiency, plan.gap, plan.lower_bound)


def test_nothing_packed():
    ours = PackingStats.from_templates({}, 128)
    assert ours == PackingStats.from_bins([], [], 128)
    theirs = seqpack.PackingStats.from_templates(Counter(), 128)
    for name in (*FIELDS, *PERCENTILES):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert repr(ours).splitlines()[:-2] == repr(theirs).splitlines()[:-1]
    assert (ours.lower_bound, ours.gap) == (0, 0.0)


def test_overfull_bins_are_refused():
    with pytest.raises(ValueError, match="11 tokens is over max_seq_len 10"):
        PackingStats.from_templates({(6, 5): 1, (1,): 3}, 10)
    with pytest.raises(ValueError, match="11 tokens is over max_seq_len 10"):
        PackingStats.from_bins([[0, 1]], [6, 5], 10)
