"""Mixtures, and sources made of sources three levels deep, against lists that are built position by position."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.lists import Joined, Leaf, Mixed, Skipped

from packhorse.epoch import Assignment
from packhorse.topology import RemainderPolicy

SEEDS = st.integers(0, 2**64 - 1)
WEIGHTS = st.one_of(st.integers(0, 9), st.sampled_from(["0.7", "1/3", 0.1234567, 1e-3]))


@st.composite
def leaves(draw, epochs):
    small, seed, _ = draw(epochs)
    made = Leaf(small, seed, draw(st.none() | st.integers(1, 9)))
    if draw(st.booleans()) and small.plan.num_bins > 1:
        a = draw(st.integers(0, small.plan.num_bins - 1))
        b = draw(st.integers(a + 1, small.plan.num_bins))
        if b - a < small.plan.num_bins:
            made = Skipped(made, ((a, b),))
    return Joined(made, draw(st.integers(2, 5))) if draw(st.booleans()) else made


@st.composite
def mixed(draw, of, most_bins=90):
    parts = tuple(draw(st.lists(of, min_size=1, max_size=4)))
    positive = st.lists(WEIGHTS, min_size=len(parts), max_size=len(parts)).filter(lambda w: any(map(bool, w)))
    per_draw = draw(st.sampled_from([1, 1, 2, 5]))
    untils = sorted(draw(st.sets(st.integers(1, most_bins * 3 // per_draw), max_size=2)))
    stages = tuple((tuple(draw(positive)), until and until * per_draw) for until in [*untils, None])
    return Mixed(parts, stages, draw(SEEDS), per_draw * draw(st.integers(1, most_bins // per_draw)), per_draw)


def check_against_lists(made, epoch, bins_of, data):
    source, expected = made.source_of(epoch), made.lists(epoch)
    assert source.num_bins == len(expected)
    every = np.arange(source.num_bins)
    bins = source.bins(every)
    assert bins.component_ids.dtype == np.int32
    assert bins.component_ids.tolist() == [dataset for dataset, _, _ in expected]
    whole = bins_of(bins)
    assert whole == [(p, tuple(ids), tuple(lengths)) for p, (_, ids, lengths) in enumerate(expected)]
    assert bins.num_tokens() == sum(sum(lengths) for _, _, lengths in expected)
    assert source.costs(every, 7).tolist() == [sum(7 * n + n * n for n in lengths) for _, _, lengths in expected]
    assert max((len(ids) for _, ids, _ in expected), default=0) <= source.max_sequences_per_bin
    assert max((sum(lengths) for _, _, lengths in expected), default=0) <= source.max_seq_len
    wanted = data.draw(st.lists(st.integers(0, max(source.num_bins - 1, 0)), max_size=10 if source.num_bins else 0))
    some = source.bins(wanted)
    assert bins_of(some) == [whole[p] for p in wanted]
    assert some.component_ids.tolist() == bins.component_ids[wanted].tolist()
    places = {}
    for p, (dataset, ids, lengths) in enumerate(expected):
        for j, (i, n) in enumerate(zip(ids, lengths, strict=True)):
            places.setdefault(i, []).append((dataset, p, j, n))
    asked = [*places, *list(places)[:3], -5, 2**41]
    found = source.locate(asked)
    fields = (found.component_ids, found.positions, found.index_in_bin, found.lengths)
    rows = {}
    for i, row in zip(found.ids.tolist(), zip(*(field.tolist() for field in fields), strict=True), strict=True):
        rows.setdefault(i, []).append(row)
    assert rows.pop(-5) == rows.pop(2**41) == [(-1, -1, -1, -1)]
    repeated = set(list(places)[:3])
    assert rows.keys() == places.keys()
    for i, ours in rows.items():
        times = 1 + (i in repeated)
        assert sorted(row for row in ours if row[1] >= 0) == sorted(times * places[i])
        elsewhere = [row[0] for row in ours if row[1] < 0]  # datasets that have the id, but not in this epoch
        if isinstance(made, Mixed):
            assert not set(elsewhere) & {row[0] for row in places[i]}
            assert len(elsewhere) == times * len(set(elsewhere))


def test_mixtures_follow_the_lists(epochs, bins_of):
    @given(mixed(leaves(epochs)), st.integers(0, 3), st.data())
    @settings(max_examples=60)
    def check(made, epoch, data):
        check_against_lists(made, epoch, bins_of, data)

    check()


def test_compositions_three_levels_deep_follow_the_lists(epochs, bins_of):
    """A mixture of mixtures of windows with skips, with skips of its own."""

    @given(mixed(leaves(epochs) | mixed(leaves(epochs))), st.integers(0, 20), st.integers(0, 1), st.data())
    @settings(max_examples=25)
    def check(made, first, epoch, data):
        ranges = ((first, first + 7),) if first + 7 < made.num_bins else ()
        check_against_lists(Skipped(made, ranges), epoch, bins_of, data)

    check()


def test_every_policy_keeps_the_datasets(epochs, topologies, bins_of):
    @given(mixed(leaves(epochs)), st.data())
    @settings(max_examples=30)
    def check(made, data):
        source = made.source_of(1)
        datasets_of = {}
        whole = source.bins(np.arange(source.num_bins))
        for dataset, (_, ids, _) in zip(whole.component_ids.tolist(), bins_of(whole), strict=True):
            for i in ids:
                datasets_of.setdefault(i, set()).add(dataset)
        topology = data.draw(topologies(source.num_bins, tuple(RemainderPolicy)))
        stream = Assignment(source, topology, seed=1, epoch=1)
        for rank in range(topology.world_size):
            bins = stream.bins(range(stream.num_steps), rank)
            assert len(bins.component_ids) == len(bins)
            for dataset, (_, ids, _) in zip(bins.component_ids.tolist(), bins_of(bins), strict=True):
                assert (dataset == -1) == (not ids)
                assert all(dataset in datasets_of[i] for i in ids)

    check()
