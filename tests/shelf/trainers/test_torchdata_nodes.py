"""`PackedNode` in torchdata's own graphs: every sequence once, and resumed exactly whatever was fetched ahead."""

import json
from collections import Counter

import pytest
from tests.flat_words import packed_dataloader
from torchdata.nodes import Loader, Mapper, Prefetcher

from packhorse.trainers.torchdata import PackedNode


@pytest.fixture
def make_graph(corpus):
    """Function: a graph with prefetching over dataset `rows`; keywords as create_packed_dataloader's."""

    def make(prefetch_factor=5, snapshot_frequency=1, **options):
        defaults = {"batch_size": 4, "seed": 3, "rank": 0, "world_size": 1, "num_workers": 0, "device": "cpu"}
        loader = packed_dataloader(f"embedded:{corpus.root}", "rows", corpus.megatron, **(defaults | options))
        node = Mapper(PackedNode(loader), lambda batch: batch["ids"].tolist())
        return Loader(Prefetcher(node, prefetch_factor, snapshot_frequency=snapshot_frequency))

    return make


def test_epochs_follow_each_other_whole(make_graph):
    graph = make_graph()
    first, second = list(graph), list(graph)
    for epoch in (first, second):
        assert Counter(number for ids in epoch for number in ids) == Counter(range(2000))
    assert first != second


@pytest.mark.parametrize("snapshot_frequency", [1, 3])
def test_a_graph_goes_on_behind_the_batch_it_yielded_last(make_graph, snapshot_frequency):
    whole = list(make_graph())
    graph = make_graph(snapshot_frequency=snapshot_frequency)
    batches = iter(graph)
    seen = [next(batches) for _ in range(7)]
    state = json.loads(json.dumps(graph.state_dict()))
    again = make_graph(snapshot_frequency=snapshot_frequency)
    again.load_state_dict(state)
    assert seen + list(again) == whole
    assert list(again) == list(make_graph(epoch=1))


def test_a_graph_resumes_under_another_batch_size_and_world_size(make_graph):
    graph = make_graph(batch_size=4)
    batches = iter(graph)
    seen = [number for _ in range(7) for number in next(batches)]
    state = graph.state_dict()
    rest = []
    for rank in range(3):
        again = make_graph(batch_size=2, rank=rank, world_size=3)
        again.load_state_dict(state)
        rest += [number for ids in again for number in ids]
    assert Counter(seen + rest) == Counter(range(2000))


def test_a_graph_that_is_left_begins_its_epoch_again(make_graph):
    graph = make_graph()
    batches = iter(graph)
    seen = [next(batches) for _ in range(3)]
    assert [next(iter(graph))] == seen[:1]
    iter(graph)
    again = make_graph()
    again.load_state_dict(graph.state_dict())
    assert next(iter(again)) == seen[0]


def test_the_end_of_an_epoch_resumes_as_the_next_one(make_graph):
    graph = make_graph()
    list(graph)
    again = make_graph()
    again.load_state_dict(graph.state_dict())
    assert list(again) == list(make_graph(epoch=1))
