"""The search for the last bins: published instances, instances by their rules, and what it must keep.

Owns `repacking`, alone and within "optimal"; leaves column generation to test_optimal.
"""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from tests.packing.exhaustive import small_problems

from packhorse.packing import pack_histogram
from packhorse.packing.counts import checked_counts
from packhorse.packing.first_plan import first_plan
from packhorse.packing.optimal._budget import Budget, OutOfWorkError
from packhorse.packing.optimal.repacking import Repacking

ORLIB = Path(__file__).parents[4] / "shared" / "data" / "orlib"
"""Files of Beasley's OR-Library, beside the repository where somebody has put them."""


def uniform(seed):
    """As in binpack1 to binpack4."""
    return np.random.default_rng(seed).integers(20, 101, 250).tolist(), 150


def hard(seed):
    """As in binpack11: Scholl's hard set."""
    return np.random.default_rng(seed).integers(20_000, 35_001, 200).tolist(), 100_000


def cut(seed, num_bins, capacity, pieces):
    """Full bins, each cut at random into as many pieces."""
    rng = np.random.default_rng(seed)
    ends = [np.sort(rng.choice(np.arange(1, capacity), pieces - 1, replace=False)) for _ in range(num_bins)]
    return [n for cuts in ends for n in np.diff(cuts, prepend=0, append=capacity).tolist()], capacity


CUT = [(40, 150, 3), (60, 1_000, 4), (100, 1_000, 3), (200, 150, 4), (120, 2_500, 5), (200, 10_000, 4)]


@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [*map(uniform, (1001, 1002, 1004)), *map(hard, (1, 7)), *(cut(seed, *case) for seed, case in enumerate(CUT))],
    ids=[*(f"uniform{seed}" for seed in (1001, 1002, 1004)), *(f"hard{seed}" for seed in (1, 7)), *map(str, CUT)],
)
def test_instances_by_the_published_rules_are_proven(lengths, capacity):
    plan = pack_histogram(Counter(lengths), capacity, algorithm="optimal")
    assert plan.proven
    assert plan.note == ""


@pytest.mark.parametrize("name", ["binpack1", "binpack2"])
def test_published_optima(name):
    if not ORLIB.exists():
        pytest.skip("needs the files of the OR-Library")
    words = iter((ORLIB / f"{name}.txt").read_text().split())
    for _ in range(int(next(words))):
        instance, capacity, num, best = next(words), int(next(words)), int(next(words)), int(next(words))
        plan = pack_histogram(Counter(int(next(words)) for _ in range(num)), capacity, algorithm="optimal")
        assert plan.lower_bound <= plan.num_bins <= best, instance


@given(small_problems(most=9))
@settings(max_examples=150)
def test_every_sequence_stays_and_no_bin_overflows(case):
    lengths, capacity, limit = case
    assume(lengths)
    pairs, limit = checked_counts(Counter(lengths), capacity, limit)
    start = first_plan(pairs, capacity, limit).templates
    repacking = Repacking(start, capacity, limit)
    with pytest.raises(OutOfWorkError):  # no plan has no bins
        repacking.search(0, Budget(20_000, math.inf))
    templates = repacking.templates()
    assert Counter(n for template in templates.elements() for n in template) == Counter(lengths)
    assert all(sum(template) <= capacity and len(template) <= limit for template in templates)
    assert all(list(template) == sorted(template, reverse=True) for template in templates)
    assert templates.total() == repacking.num_bins <= start.total()


@pytest.mark.parametrize(("case", "limit"), [((40, 1_000, 4), 4), ((40, 150, 3), 3)])
def test_a_limit_of_sequences_is_searched_under_too(case, limit):
    lengths, capacity = cut(1, *case)
    plan = pack_histogram(Counter(lengths), capacity, algorithm="optimal", max_sequences_per_bin=limit)
    assert plan.num_bins == case[0]
    assert all(len(template) <= limit for template in plan.templates)


def test_the_same_work_gives_the_same_plan():
    lengths, capacity = hard(3)
    pairs, limit = checked_counts(Counter(lengths), capacity, None)

    def searched():
        repacking = Repacking(first_plan(pairs, capacity, limit).templates, capacity, limit)
        with pytest.raises(OutOfWorkError):
            repacking.search(0, Budget(10**7, math.inf))
        return repacking.templates()

    assert searched() == searched()
