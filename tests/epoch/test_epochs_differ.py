"""Two epochs of the same bins is never what one wants: who meets whom in a bin changes, for every kind of source."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from packhorse.epoch import (
    Component,
    EpochView,
    GroupedSource,
    Groups,
    Mixture,
    PlanIndex,
    SkipSource,
    Stage,
    WindowedView,
)
from packhorse.packing import pack_histogram
from packhorse.topology import RoomRule, Skips

NUM_SEQUENCES = 6_000


@pytest.fixture(scope="module")
def kinds():
    """Kind of source → function from an epoch's number, and a seed, to that epoch."""
    lengths = np.random.default_rng(2).integers(10, 60, NUM_SEQUENCES)
    counts = dict(zip(*(each.tolist() for each in np.unique(lengths, return_counts=True)), strict=True))
    plan = PlanIndex.build(pack_histogram(counts, 128, algorithm="best-fit").templates, counts, 128)
    pool = np.argsort(lengths, kind="stable").astype(np.uint32)

    def plain(epoch, seed):
        return EpochView(plan, pool, seed=seed, epoch=epoch)

    def windowed(epoch, seed):
        return WindowedView(plan, pool, seed=seed, epoch=epoch, num_windows=6)

    table = np.stack((np.arange(NUM_SEQUENCES), np.arange(1, NUM_SEQUENCES + 1)), axis=1)
    members = np.stack((np.arange(NUM_SEQUENCES), lengths), axis=1)
    groups = Groups(table=table, members=members, rooms=RoomRule(128), max_sequences_per_bin=128)

    def mixed(epoch, seed):
        parts = [Component.of(name, partial(of, seed=seed)) for name, of in (("one", plain), ("other", windowed))]
        return Mixture(parts, [Stage({"one": 2, "other": 1})], seed=seed, num_bins=plan.num_bins).epoch(epoch)

    return {
        "global": plain,
        "windows": windowed,
        "groups": lambda epoch, seed: GroupedSource(plain(epoch, seed), groups),
        "skips": lambda epoch, seed: SkipSource(windowed(epoch, seed), Skips.of([(100, 300)])),
        "mixture": mixed,
    }


def meetings(source):
    """Pairs of sequences that share a bin, with their component."""
    bins = source.bins(np.arange(source.num_bins))
    of_bins = np.zeros(source.num_bins, np.int32) if bins.component_ids is None else bins.component_ids
    found = set()
    for ids, component in zip(np.split(bins.ids, bins.bin_ends[:-1]), of_bins.tolist(), strict=True):
        found.update((component, *pair) for pair in combinations(sorted(ids.tolist()), 2))
    return found


@pytest.mark.parametrize("kind", ["global", "windows", "groups", "skips", "mixture"])
def test_pairs_meet_again_by_chance_only(kinds, kind):
    """No more often than in other runs' epochs, which know nothing of each other."""
    ours = [meetings(kinds[kind](epoch, 3)) for epoch in range(4)]
    others = [meetings(kinds[kind](epoch, 1000 + epoch)) for epoch in range(4)]
    again = sum(len(one & other) for one, other in combinations(ours, 2))
    by_chance = sum(len(one & other) for one, other in combinations(others, 2))
    assert by_chance < 0.1 * 6 * len(ours[0])
    assert 0 < again < 1.15 * by_chance
