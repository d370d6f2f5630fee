"""Packing under several budgets, against exhaustive search, and classes of sizes against their definition."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import SizeClasses, distinct_rows, pack_classes, pack_histogram, vector_bound


@st.composite
def problems(draw, most=8):
    """Sizes of items, int64 [n, d], and capacities that each of them fits, int64 [d]."""
    dimensions = draw(st.integers(1, 3))
    capacities = draw(st.lists(st.integers(1, 40), min_size=dimensions, max_size=dimensions))
    item = st.tuples(st.integers(1, capacities[0]), *(st.integers(0, most) for most in capacities[1:]))
    items = draw(st.lists(item, min_size=1, max_size=most))
    return np.array(items, dtype=np.int64), np.array(capacities, dtype=np.int64)


def planned(items, capacities, most=8192):
    """The classes, the class of each item, and the templates."""
    first, which = distinct_rows(items)
    classes = SizeClasses.of(items[first], np.bincount(which), capacities, most)
    numbers = classes.numbers_of(items)
    counts = np.bincount(numbers, minlength=len(classes.sizes) + 1)[1:]
    return classes, numbers, pack_classes(classes.sizes, counts, capacities)


def fewest_bins(items, capacities):
    """The least number of bins, by trying every subset as the first bin."""
    if not len(items):
        return 0
    found = len(items)
    rest = range(1, len(items))
    for size in range(len(items)):
        for others in combinations(rest, size):
            chosen = [0, *others]
            if (items[chosen].sum(axis=0) <= capacities).all():
                left = np.delete(items, chosen, axis=0)
                found = min(found, 1 + fewest_bins(left, capacities))
    return found


@given(problems(most=60), st.integers(1, 60))
@settings(max_examples=200)
def test_every_item_has_a_place_and_no_bin_takes_more_than_it_has(case, most):
    items, capacities = case
    classes, numbers, templates = planned(items, capacities, most)
    assert len(classes.sizes) <= most + 2 ** (len(capacities) - 1)
    assert (classes.sizes[numbers - 1] >= items).all()
    used = np.zeros(len(classes.sizes) + 1, dtype=np.int64)
    for template, multiplicity in templates.items():
        assert list(template) == sorted(template, reverse=True)
        assert (classes.sizes[np.array(template) - 1].sum(axis=0) <= capacities).all()
        np.add.at(used, list(template), multiplicity)
    assert used.tolist() == np.bincount(numbers, minlength=len(used)).tolist()


@given(problems(most=6))
@settings(max_examples=80, deadline=None)
def test_the_bound_is_never_above_the_optimum(case):
    items, capacities = case
    optimum = fewest_bins(items, capacities)
    assert vector_bound(items, np.ones(len(items), dtype=np.int64), capacities) <= optimum
    assert optimum <= planned(items, capacities)[2].total()


def test_distinct_rows_of_the_largest_values_are_told_apart():
    rows = np.array([[2**31 - 1, 5, 2**31 - 1], [7, 2**31 - 1, 0], [2**31 - 1, 5, 2**31 - 1], [2**31 - 1, 4, 9]])
    first, which = distinct_rows(rows)
    assert rows[first].tolist() == sorted(map(list, {tuple(row) for row in rows.tolist()}))
    assert (rows[first][which] == rows).all()


def test_classes_of_many_dimensions_are_told_apart():
    draw = np.random.default_rng(2)
    items = np.stack([draw.permutation(8000) + 1 for _ in range(5)], axis=1)  # 8,000^5 is beyond 64 bits
    classes = SizeClasses.of(items, np.ones(8000, dtype=np.int64), np.full(5, 8001), items_per_class=1)
    assert (classes.sizes[classes.numbers_of(items) - 1] == items).all()


def test_of_one_dimension_it_is_best_fit():
    lengths = np.random.default_rng(0).integers(1, 900, 3000)
    values, counts = np.unique(lengths, return_counts=True)
    templates = pack_classes(values[:, None], counts, np.array([1024]))
    plan = pack_histogram(dict(zip(values.tolist(), counts.tolist(), strict=True)), 1024, algorithm="best-fit")
    assert templates.total() == plan.num_bins


def test_classes_are_exact_where_few_sizes_occur():
    items = np.array([[100, 1], [100, 2], [7, 0]] * 5, dtype=np.int64)
    classes, numbers, _ = planned(items, np.array([128, 4]))
    assert len(classes.sizes) == 3
    assert (classes.sizes[numbers - 1] == items).all()


def test_packing_by_tokens_alone_would_break_the_other_cap():
    draw = np.random.default_rng(1)
    tiles = draw.integers(0, 20, 2000)
    items = np.stack((64 * tiles + draw.integers(1, 300, 2000), tiles), axis=1)
    capacities = np.array([4096, 24])
    bins = planned(items, capacities)[2].total()
    bound = vector_bound(items, np.ones(2000, dtype=np.int64), capacities)
    by_tokens = planned(items[:, :1], capacities[:1])[2].total()
    assert by_tokens < bound <= bins <= 1.015 * bound
