"""What prints: what and where, and no connection made for it."""

import numpy as np
import pytest
import torch
from tests.flat_words import packed_dataset

from packhorse.client import (
    BinBlock,
    DevicePrefetcher,
    LoaderOptions,
    PackedDataLoader,
    PackLayout,
    TokenSource,
    Topology,
    connect,
)
from packhorse.client.batches import BatchBuffers
from packhorse.client.masks import AttentionBiasBuffer
from packhorse.client.sources import IndexableSource, MegatronSource

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def dataset(corpus, no_launcher):
    shape = {"batch_size": 4, "seed": 9, "epoch": 2, "rank": 1, "world_size": 8}
    return packed_dataset(NOWHERE, "rows", corpus.megatron, **shape)


def test_a_client_says_its_target():
    with connect(NOWHERE) as client:
        assert repr(client) == "<Client of 127.0.0.1:1>"


def test_a_dataset_and_its_loader_say_what_where_and_who_without_asking(dataset, corpus):
    said = (
        f"<PackedDataset of 'rows' at 127.0.0.1:1: <MegatronSource of {corpus.megatron}.bin: 2,000 sequences>, "
        "rank 1 of 8, batch_size 4, seed 9, epoch 2, next position 0>"
    )
    assert repr(dataset) == said
    loader = PackedDataLoader(dataset, LoaderOptions(num_workers=3, device="cpu"))
    assert repr(loader) == f"<PackedDataLoader with 3 workers, device cpu: {said}>"
    assert repr(DevicePrefetcher(loader, "cpu")).endswith(f"2 ahead: {loader!r}>")


def test_a_dataset_says_where_it_resumes(dataset):
    dataset.load_state_dict({"digest": "d", "seed": 9, "epoch": 3, "position": 1200})
    assert "epoch 3, next position 1,200>" in repr(dataset)


def test_a_stream_says_where_it_stands(embedded):
    topology = Topology(world_size=2, batch_size=3)
    with embedded.stream_bins("rows", seed=4, rank=1, topology=topology) as stream:
        begin = f"<BinStream of 'rows' at {embedded.target}: epoch 0, seed 4, rank 1 of 2, worker 0 of 1, "
        assert repr(stream) == f"{begin}not opened>"
        block = next(stream)
        assert repr(stream) == f"{begin}next step 1 of {stream.header.num_steps:,}>"
        assert repr(block).startswith("<BinBlock of 3 bins from position 3, steps 0 to 0: ")


def test_a_pack_stream_says_what_it_holds(embedded):
    with embedded.pack_stream(max_seq_len=100) as stream:
        assert repr(stream).endswith("max_seq_len 100, 0 sequences sent, 0 held back>")
        stream.send(ids=[1, 2], lengths=[10, 20])
        assert repr(stream).endswith("max_seq_len 100, 2 sequences sent, 2 held back>")


def test_sources_say_what_they_read(corpus):
    class Own(TokenSource):
        def read(self, sequence_id, start=0, length=None):
            raise AssertionError("a repr reads nothing")

    assert repr(Own()) == "<Own>"
    assert repr(MegatronSource(corpus.megatron)) == f"<MegatronSource of {corpus.megatron}.bin: 2,000 sequences>"
    assert repr(IndexableSource({7: [1]})) == "<IndexableSource of the dict: 1 sequences>"


def test_a_topology_says_what_is_not_the_default_and_reads_back():
    topology = Topology(world_size=4, batch_size=2, balance="micro-step", accumulation=8)
    assert repr(topology) == "Topology(world_size=4, batch_size=2, accumulation=8, balance='micro-step')"
    assert eval(repr(topology)) == topology
    assert repr(Topology()) == "Topology()"


def test_memory_and_layouts_say_their_size():
    layout = PackLayout.of_rows(np.array([3, 2]), np.array([2]), 8)
    assert repr(layout) == "<PackLayout of 1 rows of 8 tokens: 2 sequences, 5 tokens>"
    assert repr(BatchBuffers(4096)) == "<BatchBuffers for 4,096 tokens>"
    buffer = AttentionBiasBuffer(2, 16, torch.float32, causal=True)
    assert repr(buffer) == "<AttentionBiasBuffer for 2 rows of 16 tokens, torch.float32>"
    nothing = np.empty(0, np.int64)
    assert repr(BinBlock(nothing, nothing, nothing, nothing)) == "<BinBlock of 0 bins: 0 sequences, 0 tokens>"
