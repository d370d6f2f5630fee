"""Sources of sources as they are served, against lists: mixtures of windows, some joined, and what is skipped.

Every invariant of an epoch, for random compositions: the bins are those of the plain lists, the streams of a topology
are disjoint and complete, a stream from a position is the rest of the stream from 0, ids are found where they are, and
a server gives the very blocks that an embedded client gets.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.lists import Joined
from tests.server.composed import Composition, Windowed
from tests.server.mixtures import make_root

from packhorse.client import Balance, RemainderPolicy, Topology, connect
from packhorse.client.streams.blocks import AS_IT_IS
from packhorse.dataset import open_prepared
from packhorse.topology import Skips

NAMES = ("rows", "named", "truncated")


def lists(made, datasets, epoch, seed, skipped):
    """(component, ids, lengths, what is taken away of each) of every bin that is left, bin by bin."""

    def component_of(name, num_windows, of_seed):
        component, own = Windowed(datasets[name], num_windows, of_seed), datasets[name].manifest.max_seq_len
        return component if made.max_seq_len is None else Joined(component, made.max_seq_len // own)

    return made.left(component_of, epoch, seed, also_skipped=skipped)


def ranges(num_bins):
    pair = st.tuples(st.integers(0, num_bins - 1), st.integers(1, 12)).map(lambda p: (p[0], p[0] + p[1]))
    return st.lists(pair, max_size=2).map(tuple)


@st.composite
def compositions(draw):
    """What files say, and the positions that a request leaves out beside."""
    names = tuple(draw(st.permutations(NAMES)))[: draw(st.integers(1, 3))]
    num_bins = draw(st.integers(2, 90))
    weights = st.tuples(*[st.integers(0, 9)] * len(names)).filter(any)
    first = draw(st.tuples(*[st.integers(1, 9)] * len(names)))  # components are known in this order
    untils = sorted(draw(st.sets(st.integers(1, 200), max_size=2)))
    stages = tuple((first if not number else draw(weights), until) for number, until in enumerate([*untils, None]))
    redaction = st.tuples(
        st.sampled_from(names),
        st.sets(st.integers(0, 400), min_size=1, max_size=80).map(sorted),
        st.none() | st.integers(0, 9),
    )
    made = Composition(
        names=names,
        num_windows=tuple(draw(st.sampled_from([1, 2, 5])) for _ in names),
        max_seq_len=draw(st.sampled_from([None, 768])),
        stages=stages,
        num_bins=num_bins,
        skipped=tuple((epoch, some) for epoch in range(3) if (some := draw(ranges(num_bins)))),
        redactions=tuple(draw(st.lists(redaction, max_size=3))),
    )
    return made, draw(ranges(num_bins))


def bins_of(blocks):
    """(position, component, ids, lengths, what is taken away of each) of every bin."""
    found = []
    for block in filter(len, blocks):
        redactions = np.full(len(block.ids), AS_IT_IS) if block.redactions is None else block.redactions
        columns = (block.positions.tolist(), block.component_ids.tolist(), block.bin_ends.tolist(), block.bins())
        for position, component, end, (ids, lengths) in zip(*columns, strict=True):
            taken = redactions[end - len(ids) : end].tolist()
            found.append((position, component, ids.tolist(), lengths.tolist(), taken))
    return found


def sequences_of(bins):
    return sorted((component, *one) for _, component, *columns in bins for one in zip(*columns, strict=True))


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    return make_root(corpus, tmp_path_factory.mktemp("compositions"))


@pytest.fixture(scope="module")
def datasets(root):
    return {name: open_prepared(root / name) for name in NAMES}


@pytest.fixture(scope="module")
def clients(root, make_server):
    """A server's, and an embedded one."""
    with make_server(root) as server, connect(server.target) as served, connect(f"embedded:{root}") as embedded:
        yield served, embedded


@pytest.fixture
def check(root, datasets, clients, topologies):
    def check(composition, epoch, seed, data):
        made, skipped = composition
        name, skip = made.write(root), Skips.of(skipped)
        expected = [(p, *rest) for p, rest in enumerate(lists(made, datasets, epoch, seed, skipped))]
        served, embedded = clients
        run = {"epoch": epoch, "seed": seed, "skip": skip}

        def both(ask):
            ours, theirs = ask(served), ask(embedded)
            assert ours == theirs
            return ours

        def streamed(topology, rank=0, worker=0):
            stream = {"topology": topology, "rank": rank, "worker": worker} | run
            return both(lambda client: bins_of(client.stream_bins(name, **stream)))

        assert streamed(Topology()) == expected
        digests = {client.stream_bins(name, **run).header.digest for client in clients}
        assert len(digests) == 1
        some = data.draw(st.lists(st.integers(0, max(len(expected) - 1, 0)), max_size=9 if expected else 0))
        assert both(lambda client: bins_of([client.get_bins(name, positions=some, **run)])) == [
            expected[p] for p in some
        ]
        topology = data.draw(topologies(len(expected)))
        start = topology.start_position
        assert streamed(Topology(start_position=start)) == expected[start:]
        came = {
            rank: [streamed(topology, rank, worker) for worker in range(topology.workers_per_rank)]
            for rank in range(topology.world_size)
        }
        bins = [one for workers in came.values() for worker in workers for one in worker]
        own = [one for one in bins if one[0] >= 0]
        num_full = topology.bins_per_step * ((len(expected) - start) // topology.bins_per_step)
        if topology.remainder is RemainderPolicy.SPREAD:
            assert sequences_of(bins) == sequences_of(expected[start:])
        elif topology.remainder is RemainderPolicy.DROP:
            assert sorted(own) == expected[start : start + num_full] == sorted(bins)
        else:
            assert sorted(own) == expected[start:]
        if topology.balance is Balance.NONE:
            for rank, workers in came.items():
                for worker, part in enumerate(workers):
                    first = start + rank * topology.batch_size + worker * topology.bins_per_step
                    places = (
                        first + turn * topology.bins_per_step * topology.workers_per_rank + slot
                        for turn in itertools.count()
                        for slot in range(topology.batch_size)
                    )
                    for place, one in zip(places, part, strict=False):
                        if place < start + num_full:
                            assert one == expected[place]
                        elif topology.remainder is not RemainderPolicy.SPREAD:  # which moves bins of one sequence
                            assert one[0] in (place, -1)
        ids = sorted({i for _, _, ids, _, _ in expected for i in ids})[:20]
        found = both(lambda client: client.locate(name, ids=ids, **run)) if ids else []
        places = [
            (made.names[component], i, p, slot)
            for p, component, of_bin, _, _ in expected
            for slot, i in enumerate(of_bin)
            if i in ids
        ]
        there = [(each.component, each.id, each.position, each.index_in_bin) for each in found if each.found]
        assert sorted(row for row in there if row[2] >= 0) == sorted(places)

    return check


RUNS = (compositions(), st.integers(0, 2), st.integers(0, 2**64 - 1), st.data())


def test_compositions_are_served_as_the_lists_say(check):
    @given(*RUNS)
    @settings(max_examples=12)
    def examples(composition, epoch, seed, data):
        check(composition, epoch, seed, data)

    examples()


@pytest.mark.long
def test_many_compositions_are_served_as_the_lists_say(check):
    @given(*RUNS)
    @settings(max_examples=300)
    def examples(composition, epoch, seed, data):
        check(composition, epoch, seed, data)

    examples()
