"""A source with ranges left out: the whole epoch's list without them, whatever is asked of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment, SkipSource
from packhorse.topology import ADDED, RemainderPolicy, Skips

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda r: (r[0], r[0] + r[1])), max_size=4)


def test_bins_costs_and_places_are_those_of_what_is_left(epochs, bins_of):
    @given(epochs, RANGES, RANGES)
    @settings(max_examples=150)
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
    @settings(max_examples=100)
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
