"""Plans under a limit of sequences: balanced packing against the same done plainly, and what "auto" makes of them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import check_certificate, counts_of_templates, lower_bound, pack_histogram, registry
from packhorse.packing.optimal import column_generation as optimal
from packhorse.packing.optimal._branching import enumerate_bins
from packhorse.packing.optimal._coarse import coarse_classes, refined, rounded
from packhorse.packing.plan import PackerResult


def into(num_bins, lengths, capacity, limit):
    """Longest first, each into the emptiest bin that has fewer than `limit`; None where one fits nowhere."""
    bins = [[] for _ in range(num_bins)]
    for length in sorted(lengths, reverse=True):
        open_bins = [b for b in bins if len(b) < limit]
        emptiest = min(open_bins, key=sum, default=[capacity])
        if sum(emptiest) + length > capacity:
            return None
        emptiest.append(length)
    return bins


def plain_heuristic(lengths, capacity, limit):
    """The fewest bins that bisection between a bound and one bin a sequence finds."""
    too_few = max(-(-sum(lengths) // capacity), -(-len(lengths) // limit)) - 1
    enough = len(lengths)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if into(middle, lengths, capacity, limit) is None:
            too_few = middle
        else:
            enough = middle
    return enough


def lognormal(mu, sigma, num, max_seq_len, seed=0):
    lengths = np.clip(np.random.default_rng(seed).lognormal(mu, sigma, num).astype(int), 1, max_seq_len)
    return Counter(lengths.tolist())


def random_case(seed):
    """A capped histogram in which the limit matters: (lengths, capacity, limit)."""
    random = np.random.default_rng(seed)
    capacity = int(random.integers(20, 400))
    num = int(random.integers(20, 250))
    kind = seed % 3
    if kind == 0:
        draws = random.lognormal(np.log(capacity / random.uniform(4, 20)), random.uniform(0.4, 1.4), num)
    elif kind == 1:
        draws = random.uniform(1, capacity / random.uniform(1, 8), num)
    else:
        draws = np.where(random.random(num) < 0.5, random.normal(capacity / 2, capacity / 20, num), capacity / 30)
    lengths = np.clip(draws.astype(int), 1, capacity).tolist()
    most = max(2, round(capacity / np.mean(lengths)))
    return lengths, capacity, int(random.integers(2, most + 3))


@pytest.mark.parametrize("seed", range(50))
def test_auto_is_never_above_the_plain_heuristic(seed, monkeypatch):
    monkeypatch.setattr(optimal, "_STEPS_FOR_LAST_BINS", 10**7)  # with a limit, many of these bounds cannot be reached
    lengths, capacity, limit = random_case(seed)
    plain = plain_heuristic(lengths, capacity, limit)
    plans = {
        name: pack_histogram(Counter(lengths), capacity, algorithm=name, max_sequences_per_bin=limit)
        for name in ("balanced", "auto", "optimal")
    }
    assert plans["balanced"].num_bins <= plain
    assert plans["optimal"].num_bins <= plans["auto"].num_bins <= plain
    assert not any(plan.cut_off for plan in plans.values())


@pytest.mark.parametrize(
    ("lower_bound", "note"), [(2, ""), (1, "optimal: stopped; 2 bins above the bound; balanced has 1 fewer")]
)
def test_the_note_of_auto_is_of_the_plan_that_it_returns(monkeypatch, lower_bound, note):
    """Column generation ends with three bins, and the balanced packer then finds two."""
    searched = PackerResult(
        templates=Counter({(5,): 2, (5, 5): 1}),
        algorithm="best-fit",
        lower_bound=lower_bound,
        note="optimal: stopped; 2 bins above the bound",
    )
    monkeypatch.setattr(registry, "first_plan", lambda *_: searched)
    monkeypatch.setattr(registry, "_improve", lambda *_: searched)
    monkeypatch.setattr(registry, "bound_of_pairs", lambda *_: lower_bound)
    plan = pack_histogram({5: 4}, 10)
    assert (plan.num_bins, plan.algorithm, plan.note) == (2, "balanced", note)


def test_the_same_bins_as_one_by_one():
    lengths, capacity, limit = random_case(3)
    plan = pack_histogram(Counter(lengths), capacity, algorithm="balanced", max_sequences_per_bin=limit)
    bins = into(plan.num_bins, lengths, capacity, limit)
    assert sorted(map(sum, plan.templates.elements())) == sorted(sum(b) for b in bins if b)
    assert into(plan.num_bins - 1, lengths, capacity, limit) is None


def test_cost_does_not_grow_with_the_counts():
    counts = {length: 10**13 + length for length in range(1, 101)}
    for limit in (3, 7, 40):
        plan = pack_histogram(counts, 200, algorithm="balanced", max_sequences_per_bin=limit)
        assert counts_of_templates(plan.templates) == counts
        assert max(map(len, plan.templates)) <= limit


@pytest.mark.parametrize(
    ("counts", "capacity", "limit"),
    [
        (lognormal(4.1, 1.0, 20_000, 1024), 1024, 8),
        (lognormal(6.5, 1.3, 30_000, 32768), 32768, 32),
    ],
    ids=["limit 8", "limit 32"],
)
def test_capped_plans_are_within_half_a_percent_of_a_proof(counts, capacity, limit):
    """Best-fit is a sixth above; the examples in full are measured in tests/benchmarks/bench_packers.py."""
    plan = pack_histogram(counts, capacity, max_sequences_per_bin=limit)
    assert counts_of_templates(plan.templates) == counts
    assert max(map(len, plan.templates)) <= limit
    assert max(map(sum, plan.templates)) <= capacity
    assert plan.gap <= 0.005
    assert not plan.cut_off
    assert plan.lower_bound >= lower_bound(counts, capacity, max_sequences_per_bin=limit)
    first = pack_histogram(counts, capacity, max_sequences_per_bin=limit, algorithm="best-fit")
    assert first.num_bins > 1.15 * plan.num_bins


def test_many_lengths_with_few_sequences_each_are_solved_coarsely(monkeypatch):
    """Best-fit makes pairs of the long ones and is left with short ones; a part of the work finds better triples."""
    random = np.random.default_rng(1)
    counts = {int(n): 1 for n in random.choice(np.arange(4097, 8192), 1500, replace=False)}
    monkeypatch.setattr(optimal, "_STEPS", 10**9)
    plan = pack_histogram(counts, 16384)
    assert counts_of_templates(plan.templates) == counts
    assert plan.gap <= 0.02
    assert plan.num_bins <= 0.95 * pack_histogram(counts, 16384, algorithm="best-fit").num_bins


@pytest.mark.parametrize("limit", [None, 3])
def test_a_bound_of_a_coarse_problem_holds_for_the_real_one(monkeypatch, limit):
    """The search ends after the first coarse problem: what is proven then is a bound on rounded lengths."""
    counts = dict.fromkeys(range(201, 400), 3)
    monkeypatch.setattr(optimal, "_NUMBERS_OF_CLASSES", (40,))
    monkeypatch.setattr(optimal, "_solve_and_round", lambda search, budget: None)
    monkeypatch.setattr(optimal, "_STEPS_FOR_LAST_BINS", 10**8)  # the last bins are not what is proven here
    plan = pack_histogram(counts, 800, algorithm="optimal", max_sequences_per_bin=limit)
    assert plan.certificate is not None
    assert plan.lower_bound == check_certificate(plan.certificate, counts, 800, max_sequences_per_bin=limit)
    assert plan.lower_bound > lower_bound(counts, 800, max_sequences_per_bin=limit)


@st.composite
def coarse_cases(draw):
    capacity = draw(st.integers(4, 90))
    counts = draw(st.dictionaries(st.integers(1, capacity), st.integers(1, 30), min_size=1, max_size=25))
    return counts, capacity, draw(st.integers(1, 9)), draw(st.integers(1, 8))


@given(coarse_cases())
@settings(max_examples=200)
def test_a_plan_for_rounded_lengths_becomes_one_for_the_lengths(case):
    counts, capacity, limit, most = case
    pairs = sorted(counts.items(), reverse=True)
    parts = coarse_classes(pairs, most)
    assert len(parts) <= most
    assert [pair for part in parts for pair in part] == pairs
    coarse = dict(rounded(parts, "up"))
    assert sum(coarse.values()) == sum(counts.values())
    plan = pack_histogram(coarse, capacity, algorithm="best-fit", max_sequences_per_bin=limit)
    templates = refined(plan.templates, parts)
    assert counts_of_templates(templates) == counts
    assert templates.total() == plan.num_bins
    for template, multiplicity in templates.items():
        assert multiplicity > 0
        assert list(template) == sorted(template, reverse=True)
        assert sum(template) <= capacity
        assert len(template) <= limit
    shortest = rounded(parts, "down")
    assert sum(count for _, count in shortest) == sum(counts.values())
    assert [length for length, _ in shortest] == [min(length for length, _ in part) for part in parts]


def test_refining_keeps_equal_bins_together():
    parts = [[(60, 10**12), (59, 10**12)], [(40, 10**12), (39, 10**12)]]
    templates = refined({(60, 40): 2 * 10**12}, parts)
    assert templates == {(60, 40): 10**12, (59, 39): 10**12}


def test_more_lengths_than_python_recurses_are_not_enumerated():
    assert enumerate_bins(list(range(4000, 2000, -1)), [1] * 2000, 4001, 4001) is None
