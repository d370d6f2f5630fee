"""Bins of several sources that are made one after the other and put in order, beside taking them one by one."""

import numpy as np

from packhorse.epoch import Component, EpochView, JoinedSource, Mixture, PlanIndex, Stage
from packhorse.epoch.vector_instructions import WIDE_LANES


def _epoch(sizes):
    """An epoch of two bins of each size; its ids are all above those of smaller ones."""
    templates = {(2,) * size + (1,): 2 for size in sizes}
    counts = {1: 2 * len(sizes), 2: 2 * sum(sizes)}
    plan = PlanIndex.build(templates, counts, 2 * max(sizes) + 1)
    pool = np.arange(plan.pool_size, dtype=np.uint32)
    return EpochView(plan, pool, seed=1, epoch=0, first_tokens=pool[::-1].copy())


def _mixture():
    few, many = _epoch(range(1, 9)), _epoch([1, 2, WIDE_LANES - 1, WIDE_LANES, 3 * WIDE_LANES, 5 * WIDE_LANES + 3])
    joined = JoinedSource(few, 3)
    parts = [
        Component.of(str(number), lambda epoch, each=each: each) for number, each in enumerate((few, many, joined))
    ]
    return Mixture(parts, [Stage({"0": 1, "1": 2, "2": 1})], seed=5, num_bins=40).epoch(0)


def test_bins_put_in_order_are_those_taken_one_by_one():
    """A bin is copied in lanes beyond its end: it must not reach what another one has written."""
    mixture, positions = _mixture(), np.random.default_rng(2).integers(0, 40, 60)
    one_by_one = [mixture.bins([position]) for position in positions]
    bins = mixture.bins(positions)
    assert bins.bin_ends.tolist() == np.cumsum([len(each.ids) for each in one_by_one]).tolist()
    assert bins.component_ids.tolist() == [int(each.component_ids[0]) for each in one_by_one]
    for name in ("ids", "lengths", "first_tokens"):
        assert getattr(bins, name).tolist() == np.concatenate([getattr(each, name) for each in one_by_one]).tolist()
    rows = [np.zeros(len(each.ids), int) if each.rows is None else each.rows for each in one_by_one]
    assert bins.rows.tolist() == np.concatenate(rows).tolist()


def test_bins_of_several_epochs_of_a_component_in_any_order():
    """A component's bins run from one of its epochs into the next, and are asked for backwards."""
    plan = PlanIndex.build({(1,): 7}, {1: 7}, 1)
    short = Component.of("short", lambda epoch: EpochView(plan, np.arange(7) + 100 * epoch, seed=1, epoch=epoch))
    mixture = Mixture([short], [Stage({"short": 1})], seed=1, num_bins=70).epoch(0)
    backwards = mixture.bins(np.arange(70)[::-1])
    assert backwards.ids.tolist() == mixture.bins(np.arange(70)).ids.tolist()[::-1]
    assert sorted(backwards.ids.tolist()) == [100 * epoch + n for epoch in range(10) for n in range(7)]
    assert mixture.costs(np.arange(70)[::-1], 5).tolist() == [6] * 70
