"""Ranges left out and short bins joined, against lists of the whole epoch; mixtures are in test_compositions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import (
    Assignment,
    Component,
    EpochView,
    GroupedSource,
    Groups,
    JoinedSource,
    Mixture,
    SkipSource,
    Stage,
)
from packhorse.topology import ADDED, RemainderPolicy, RoomRule, Skips, Topology

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda r: (r[0], r[0] + r[1])), max_size=4)


def test_bins_costs_and_places_are_those_of_what_is_left(epochs, bins_of):
    @given(epochs, RANGES, RANGES)
    @settings(max_examples=75)
    def check(drawn, ranges, more):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        whole = bins_of(view.bins(np.arange(view.num_bins)))
        left = [one for p, one in enumerate(whole) if not any(a <= p < b for a, b in ranges)]
        source = SkipSource(view, Skips.of(ranges))
        twice = SkipSource(source, Skips.of(more))  # sources compose
        for some, expected in (
            (source, left),
            (twice, [one for p, one in enumerate(left) if not any(a <= p < b for a, b in more)]),
        ):
            assert some.num_bins == len(expected)
            assert (some.max_seq_len, some.max_sequences_per_bin) == (view.max_seq_len, view.max_sequences_per_bin)
            every = np.arange(some.num_bins)
            found = bins_of(some.bins(every))
            assert [one[1:] for one in found] == [one[1:] for one in expected]
            assert [one[0] for one in found] == every.tolist()
            assert some.costs(every, 7).tolist() == [sum(7 * n + n * n for n in one[2]) for one in expected]
            places = {i: (p, j) for p, one in enumerate(expected) for j, i in enumerate(one[1])}
            located = some.locate(small.pool)
            for i, p, j, length in zip(
                small.pool.tolist(), located.positions, located.index_in_bin, located.lengths, strict=True
            ):
                assert (int(p), int(j)) == places.get(i, (-1, -1))
                assert length > 0

    check()


def test_every_topology_and_balance_holds_with_skips(epochs, topologies, bins_of):
    @given(epochs, RANGES, st.data())
    @settings(max_examples=60)
    def check(drawn, ranges, data):
        small, seed, epoch = drawn
        source = SkipSource(small.view(seed, epoch), Skips.of(ranges))
        topology = data.draw(topologies(source.num_bins, (RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)))
        stream = Assignment(source, topology, seed=seed, epoch=epoch)
        bins = [
            one for rank in range(topology.world_size) for one in bins_of(stream.bins(range(stream.num_steps), rank))
        ]
        start = topology.start_position
        assert sorted(p for p, _, _ in bins if p != ADDED) == list(range(start, source.num_bins))
        expected = source.bins(np.arange(start, source.num_bins)).ids.tolist()
        assert sorted(i for _, ids, _ in bins for i in ids) == sorted(expected)

    check()


def joined_lists(small, seed, epoch, rows_per_bin):
    """(ids, lengths, rows) of every long bin, from the definition of the short ones."""
    short = [small.bin_at(p, seed, epoch) for p in range(small.plan.num_bins)]
    runs = [short[p : p + rows_per_bin] for p in range(0, len(short), rows_per_bin)]
    return [
        (
            [i for ids, _ in run for i in ids],
            [n for _, lengths in run for n in lengths],
            [row for row, (ids, _) in enumerate(run) for _ in ids],
        )
        for run in runs
    ]


def lists_of(bins):
    parts = (np.split(array, bins.bin_ends[:-1]) for array in (bins.ids, bins.lengths, bins.rows))
    return [tuple(part.tolist() for part in one) for one in zip(*parts, strict=True)]


def test_joined_bins_follow_the_lists(epochs):
    @given(epochs, st.integers(1, 7), st.data())
    @settings(max_examples=60)
    def check(prepared_epoch, rows_per_bin, data):
        small, seed, epoch = prepared_epoch
        source = JoinedSource(small.view(seed, epoch), rows_per_bin)
        expected = joined_lists(small, seed, epoch, rows_per_bin)
        every = np.arange(source.num_bins)
        bins = source.bins(every)
        assert lists_of(bins) == expected
        assert bins.rows.dtype == np.uint16
        assert bins.templates is bins.component_ids is None
        assert source.max_seq_len == rows_per_bin * small.max_seq_len
        assert source.costs(every, 7).tolist() == [sum(7 * n + n * n for n in lengths) for _, lengths, _ in expected]
        assert max(len(ids) for ids, _, _ in expected) <= source.max_sequences_per_bin
        wanted = data.draw(st.lists(st.integers(0, source.num_bins - 1), max_size=9))
        assert lists_of(source.bins(wanted))[: len(wanted)] == [expected[p] for p in wanted]
        places = {i: (p, j) for p, (ids, _, _) in enumerate(expected) for j, i in enumerate(ids)}
        found = source.locate([*places, -5])
        assert list(zip(found.positions.tolist(), found.index_in_bin.tolist(), strict=True)) == [
            *places.values(),
            (-1, -1),
        ]

    check()


def test_a_last_step_deals_sequences_with_their_rows(prepared):
    """Parts of a long bin have its rows, in their order, so none of these outgrows a short bin."""
    small = prepared({3: 40, 5: 30, 7: 11}, 10)
    source = JoinedSource(small.view(1, 0), 4)
    row_of = {i: row for ids, _, rows in joined_lists(small, 1, 0, 4) for i, row in zip(ids, rows, strict=True)}
    stream = Assignment(source, Topology(world_size=2, batch_size=source.num_bins - 1, remainder="spread"))
    seen = []
    for rank in range(2):
        bins = stream.bins(range(1), rank)
        seen += zip(bins.ids.tolist(), bins.rows.tolist(), strict=True)
        for ids, lengths, rows in lists_of(bins):
            assert max(np.bincount(rows, weights=lengths)) <= 10
            assert len(ids)
            assert rows == sorted(rows)
    assert sorted(seen) == sorted(row_of.items())


def test_groups_are_joined_whole(prepared):
    small = prepared({4: 9, 6: 9}, 10)
    lengths = np.repeat(small.plan.lengths, small.plan.counts)
    members = np.array([[100 * g + m, n // 2] for g, n in enumerate(lengths.tolist()) for m in range(2)])
    table = np.stack((np.arange(len(lengths)), 2 * np.arange(1, len(lengths) + 1)), axis=1)
    groups = Groups(table=table, members=members, rooms=RoomRule(10), max_sequences_per_bin=10)
    pool = np.arange(len(lengths))
    grouped = GroupedSource(EpochView(small.plan, pool, seed=1, epoch=0), groups)
    whole, long = grouped.bins(np.arange(grouped.num_bins)), JoinedSource(grouped, 3)
    bins = long.bins(np.arange(long.num_bins))
    assert bins.ids.tolist() == whole.ids.tolist()
    assert bins.group_ids.tolist() == whole.group_ids.tolist()
    assert bins.rows.tolist() == np.repeat(np.arange(grouped.num_bins) % 3, whole.sizes()).tolist()


def test_components_of_three_lengths_are_mixed_by_tokens_of_room(prepared):
    """Every position has the same room, and what is not joined stands in row 0."""
    parts = []
    for name, capacity, rows in (("short", 8, 4), ("middle", 16, 2), ("long", 32, 1)):
        small = prepared({capacity // 2 + 1: 24, capacity // 4: 24}, capacity)

        def source_of(epoch, small=small, rows=rows):
            return JoinedSource(small.view(3, epoch), rows) if rows > 1 else small.view(3, epoch)

        parts.append(Component.of(name, source_of))
    source = Mixture(parts, [Stage({"short": 1, "middle": 1, "long": 2})], seed=1, num_bins=64).epoch(1)
    bins = source.bins(np.arange(64))
    assert np.bincount(bins.component_ids).tolist() == [16, 16, 32]
    assert source.max_seq_len == 32
    datasets = np.repeat(bins.component_ids, bins.sizes())
    assert [int(bins.rows[datasets == number].max()) for number in range(3)] == [3, 1, 0]
    of_rows = np.repeat(np.arange(64), bins.sizes()) * 4 + bins.rows
    tokens = np.bincount(of_rows, weights=bins.lengths, minlength=256).reshape(64, 4).max(axis=1)
    assert (tokens <= np.array([8, 16, 32])[bins.component_ids]).all()


def test_what_cannot_be_joined_is_refused(prepared):
    small = prepared({3: 4}, 6)
    with pytest.raises(ValueError, match=r"rows_per_bin must be an integer in \[1, 65536\], got 0"):
        JoinedSource(small.view(), 0)
    mixture = Mixture([Component.of("one", lambda epoch: small.view(1, epoch))], [Stage({"one": 1})], seed=1)
    with pytest.raises(ValueError, match="join the bins of its components, then mix them"):
        JoinedSource(mixture.epoch(0), 2).bins([0])
    with pytest.raises(ValueError, match=r"positions must be in \[0, 1\), got 1"):
        JoinedSource(small.view(), 2).bins([1])
