"""The plan's tables: they use every sequence once or are refused, and find any bin's template."""

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import PlanIndex, WindowedView
from packhorse.epoch import plan_kernels as kernels
from packhorse.packing import canonical_templates, counts_of_templates


def test_tables_use_every_sequence_once(epochs):
    """Invariant 1, from the tables and not from the templates."""

    @given(epochs)
    @settings(max_examples=100)
    def check(drawn):
        small, _, _ = drawn
        plan = small.plan
        drawn_of = [[] for _ in plan.lengths]
        for t in range(len(plan.template_size)):
            multiplicity = int(plan.first_bin[t + 1] - plan.first_bin[t])
            for repeat in range(plan.first_repeat[t], plan.first_repeat[t + 1]):
                first = int(plan.repeat_first_draw[repeat])
                drawn_of[plan.repeat_length[repeat]].extend(
                    range(first, first + multiplicity * int(plan.repeat_copies[repeat]))
                )
        for index, length in enumerate(plan.lengths.tolist()):
            assert sorted(drawn_of[index]) == list(range(small.counts[length]))
        assert plan.num_bins == sum(small.templates.values())
        assert plan.num_sequences == sum(small.counts.values()) == len(small.pool)
        assert plan.max_sequences_per_bin == max(len(template) for template in small.templates)
        assert plan.pool_starts.tolist() == [0, *accumulate(small.counts.values())][:-1]
        first_bin = [0, *accumulate(m for _, m in canonical_templates(small.templates))]
        assert plan.first_bin.tolist() == first_bin

    check()


def test_any_other_count_is_refused(epochs):
    @given(epochs, st.data())
    @settings(max_examples=100)
    def check(drawn, data):
        small, _, _ = drawn
        length = data.draw(st.sampled_from(sorted(small.counts)))
        off = data.draw(st.integers(-small.counts[length] + 1, 3).filter(bool)) if small.counts[length] > 1 else 1
        wrong = {**small.counts, length: small.counts[length] + off}
        right, there_are = small.counts[length], small.counts[length] + off
        with pytest.raises(ValueError, match=f"use {right} sequences of length {length}, but there are {there_are}"):
            PlanIndex.build(small.templates, wrong, small.max_seq_len)

    check()


@pytest.mark.parametrize(
    ("templates", "counts", "message"),
    [
        ({(5, 3): 2}, {5: 2}, r"template \[5, 3\] uses length 3, which no sequence has"),
        ({(5, 3): 2}, {5: 2, 3: 0}, r"template \[5, 3\] uses length 3, which no sequence has"),
        ({(5,): 2}, {5: 2, 3: 1}, "use 0 sequences of length 3, but there are 1"),
        ({(5, 3): 2}, {5: 2, 3: 3}, "use 2 sequences of length 3, but there are 3"),
        ({(5, 3): 2}, {5: 1, 3: 2}, "use 2 sequences of length 5, but there are 1"),
        ({(3, 5): 2}, {5: 2, 3: 2}, r"template \[3, 5\] × 2 is not a descending list"),
        ({(5, 3): 0}, {}, r"template \[5, 3\] × 0 is not a descending list of lengths used at least once"),
        ({(5, 3): -1}, {}, "× -1 is not"),
        ({(): 1}, {}, r"template \[\] × 1"),
        ({(5, 4): 1}, {5: 1, 4: 1}, r"template \[5, 4\] has 9 tokens, over 8"),
        ({}, {3: 1}, "use 0 sequences of length 3, but there are 1"),
    ],
)
def test_bad_plans_are_refused(templates, counts, message):
    with pytest.raises(ValueError, match=message):
        PlanIndex.build(templates, counts, 8)


def test_no_sequences():
    plan = PlanIndex.build({}, {}, 8)
    assert (plan.num_bins, plan.num_sequences, plan.max_sequences_per_bin) == (0, 0, 0)


@pytest.mark.parametrize("largest", [1, 50, 10**4, 10**9, 10**13])
def test_any_bin_is_found_in_plans_of_any_size(largest):
    """The lookup table and its bisection against plain bisection, up to 10^15 bins and at every template's edges."""
    rng = np.random.default_rng(largest % 1000)
    templates = {(n, *((1,) * int(rng.integers(0, 3)))): int(rng.integers(1, largest + 1)) for n in range(2, 300)}
    plan = PlanIndex.build(templates, counts_of_templates(templates), 400)
    ordered = canonical_templates(templates)
    first_bin = [0, *accumulate(multiplicity for _, multiplicity in ordered)]
    edges = {b for edge in first_bin for b in (edge - 1, edge, edge + 1) if 0 <= b < first_bin[-1]}
    wanted = sorted(edges | set(rng.integers(0, first_bin[-1], 2000).tolist()))
    found, sizes, numbers = (np.empty(len(wanted), dtype=np.int64) for _ in range(3))
    copies = np.array(wanted)
    kernels.find_bins(plan.bin_tables, 70, found, copies, sizes, numbers)
    expected = [bisect_right(first_bin, b) - 1 for b in wanted]
    assert found.tolist() == expected
    assert copies.tolist() == [b - first_bin[t] for b, t in zip(wanted, expected, strict=True)]
    assert sizes.tolist() == [len(ordered[t][0]) for t in expected]
    assert numbers.tolist() == [t + 70 for t in expected]


@pytest.mark.parametrize(
    ("templates", "is_wide"),
    [
        ({(3,): 2**31 - 1}, False),
        ({(3,): 2**31}, True),
        ({(2,): 2**30, (1,): 2**30}, True),
        ({(1,) * (2**16 - 1): 5}, False),
        ({(1,) * 2**16: 5}, True),
        ({(length,): 1 for length in range(1, 2**16 + 1)}, True),
    ],
)
def test_tables_are_as_narrow_as_their_numbers_allow(templates, is_wide):
    counts = counts_of_templates(templates)
    plan = PlanIndex.build(templates, counts, 2**17)
    assert plan.is_wide == is_wide
    assert plan.widened().is_wide
    assert plan.as_templates() == plan.widened().as_templates() == templates
    assert {plan.first_bin.dtype, plan.first_repeat.dtype, plan.repeat_first_draw.dtype} == {plan.first_bin.dtype}
    assert [plan.tables.first_bin.itemsize, plan.tables.repeat_length.itemsize] == ([8, 4] if is_wide else [4, 2])


def test_wide_tables_give_the_same_epoch(epochs):
    @given(epochs, st.integers(1, 5))
    @settings(max_examples=30)
    def check(drawn, num_windows):
        small, seed, epoch = drawn
        narrow, wide = (
            WindowedView(plan, small.pool, seed=seed, epoch=epoch, num_windows=num_windows)
            for plan in (small.plan, small.plan.widened())
        )
        every = np.arange(narrow.num_bins)
        assert narrow.bins(every).ids.tolist() == wide.bins(every).ids.tolist()
        assert narrow.costs(every, 3).tolist() == wide.costs(every, 3).tolist()
        assert narrow.locate(small.pool).positions.tolist() == wide.locate(small.pool).positions.tolist()

    check()
