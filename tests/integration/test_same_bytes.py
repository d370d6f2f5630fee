"""Every transport gives the same bytes, and every method tells the same story about an epoch."""

import itertools
from collections import Counter

import numpy as np
import pytest

from packhorse.client import RemainderPolicy, StreamMode
from packhorse.topology import Topology

POLICIES = list(RemainderPolicy)
TOPOLOGIES = [  # world_size, workers_per_rank, batch_size
    (1, 1, 1),
    (2, 1, 3),
    (3, 2, 4),
    (5, 3, 2),
]


def topology_of(numbers, **options):
    """The Topology of one of TOPOLOGIES."""
    world_size, workers_per_rank, batch_size = numbers
    return Topology(world_size=world_size, workers_per_rank=workers_per_rank, batch_size=batch_size, **options)


def every_place(topology, **options):
    """The arguments of every stream of a topology."""
    for rank, worker in itertools.product(range(topology.world_size), range(topology.workers_per_rank)):
        yield {"topology": topology, "rank": rank, "worker": worker, **options}


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("remainder", POLICIES)
def test_tcp_unix_and_embedded_give_the_same_bytes(client, unix_client, embedded, joined, topology, remainder):
    for dataset, start in (("rows", 0), ("named", 17), ("few", 0)):
        info = embedded.get_dataset(dataset)
        assert client.get_dataset(dataset) == unix_client.get_dataset(dataset) == info
        shapes = [topology_of(topology, remainder=remainder, start_position=start, mode=mode) for mode in StreamMode]
        places = [place for shape in shapes for place in every_place(shape, seed=2**64 - 1, epoch=3)]
        for place in places:
            if place["topology"].mode is StreamMode.INDEPENDENT and place["rank"] != topology[0] - 1:
                continue
            streams = [c.stream_bins(dataset, **place) for c in (client, unix_client, embedded)]
            blocks = [list(stream) for stream in streams]
            assert streams[0].header == streams[1].header == streams[2].header
            assert joined(blocks[0]) == joined(blocks[1]) == joined(blocks[2])
            assert [b.steps for b in blocks[0]] == [b.steps for b in blocks[2]]


@pytest.mark.parametrize("dataset", ["rows", "named", "truncated", "few"])
def test_an_epoch_holds_every_sequence_once_with_its_length(client, corpus, dataset):
    blocks = list(client.stream_bins(dataset, seed=5, epoch=1))
    pairs = [(int(i), int(n)) for block in blocks for i, n in zip(block.ids, block.lengths, strict=True)]
    assert sorted(pairs) == sorted(corpus.lengths(dataset).items())
    assert np.concatenate([b.positions for b in blocks]).tolist() == list(range(client.get_dataset(dataset).num_bins))
    again = [i for block in client.stream_bins(dataset, seed=5, epoch=2) for i in block.ids.tolist()]
    assert sorted(again) == sorted(i for i, _ in pairs)
    assert dataset == "few" or again != [i for i, _ in pairs]  # two bins come in the same order every other time


@pytest.mark.parametrize("remainder", POLICIES)
@pytest.mark.parametrize("topology", [(1, 1, 5), (3, 2, 4), (2, 3, 37)], ids=str)
def test_streams_get_bins_and_locate_agree(client, corpus, bins_of_stream, topology, remainder):
    dataset, start, seed, epoch = "rows", 11, 9, 4
    lengths = corpus.lengths(dataset)
    world_size, workers_per_rank, batch_size = topology
    shape = topology_of(topology, remainder=remainder, start_position=start)
    num_bins = client.get_dataset(dataset).num_bins
    by_position = bins_of_stream(client.stream_bins(dataset, seed=seed, epoch=epoch))
    where = {}
    came = Counter()
    for place in every_place(shape, seed=seed, epoch=epoch):
        stream = client.stream_bins(dataset, **place)
        delivered = bins_of_stream(stream, batch_size, workers_per_rank)
        steps = sorted({d.step for d in delivered})
        assert steps == list(range(place["worker"], stream.header.num_steps, workers_per_rank))
        for d in delivered:
            is_copy = remainder is RemainderPolicy.REPEAT and d.position < 0
            came.update(() if is_copy else d.ids)
            if not is_copy:
                where.update(dict.fromkeys(d.ids, (d.step, place["rank"], place["worker"], d.slot)))
            full_step = start + (d.step + 1) * world_size * batch_size <= num_bins
            if d.position >= 0 and (full_step or remainder is not RemainderPolicy.SPREAD):
                assert (d.ids, d.lengths) == (by_position[d.position].ids, by_position[d.position].lengths)
    dropped = stream.header.num_bins_dropped
    before = {i for d in by_position[:start] for i in d.ids}
    left_out = before | {i for d in by_position[num_bins - dropped :] for i in d.ids}
    assert (dropped > 0) == (remainder is RemainderPolicy.DROP)
    assert came == Counter(set(lengths) - left_out)

    locations = client.locate(dataset, epoch=epoch, seed=seed, ids=corpus.ids[dataset], topology=shape)
    assert [location.id for location in locations] == corpus.ids[dataset].tolist()
    for location in locations:
        assert location.found
        assert location.length == lengths[location.id]
        assert by_position[location.position].ids[location.index_in_bin] == location.id
        place = (location.step, location.rank, location.worker, location.slot)
        assert place == where.get(location.id, (None,) * 4)


def test_get_bins_gives_the_stream_s_bins_in_any_order(client, embedded, bins_of_stream, joined):
    stream = bins_of_stream(client.stream_bins("named", seed=1, epoch=2))
    wanted = np.random.default_rng(0).integers(0, len(stream), 300)
    block = client.get_bins("named", seed=1, epoch=2, positions=wanted)
    assert block.positions.tolist() == wanted.tolist()
    assert [tuple(ids.tolist()) for ids, _ in block.bins()] == [stream[p].ids for p in wanted]
    assert [tuple(lengths.tolist()) for _, lengths in block.bins()] == [stream[p].lengths for p in wanted]
    assert joined([block]) == joined([embedded.get_bins("named", seed=1, epoch=2, positions=wanted.tolist())])
    assert len(client.get_bins("named", positions=[])) == 0


def test_locate_without_topology_and_of_unknown_ids(client, embedded):
    ids = [5, -1, 2**40, 1999, 2000, 5, -(2**63), 2**63 - 1]
    locations = client.locate("rows", ids=ids)
    assert locations == embedded.locate("rows", ids=ids)
    assert [location.id for location in locations] == ids
    assert [location.found for location in locations] == [True, False, False, True, False, True, False, False]
    assert locations[0].position is not None
    assert locations[0].step is None
    assert locations[1].length is locations[1].position is locations[1].index_in_bin is None
    assert client.locate("rows", ids=[]) == []


def test_every_start_position_continues_the_same_order(client, bins_of_stream):
    whole = bins_of_stream(client.stream_bins("few"))
    for start in range(len(whole) + 1):
        rest = bins_of_stream(client.stream_bins("few", topology=Topology(start_position=start)))
        assert [(d.position, d.ids) for d in rest] == [(d.position, d.ids) for d in whole[start:]]


def test_independent_streams_are_each_complete_in_an_order_of_their_own(client, corpus):
    orders = set()
    for place in every_place(topology_of((2, 2, 3), mode="independent"), seed=4):
        blocks = list(client.stream_bins("named", **place))
        ids = [i for block in blocks for i in block.ids.tolist()]
        assert sorted(ids) == sorted(corpus.ids["named"].tolist())
        orders.add(tuple(ids))
    assert len(orders) == 4
