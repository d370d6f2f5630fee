"""The real Grain over `PackedBins`: packed, sharded, checkpointed, and resumed under another number of shards."""

from collections import Counter

import numpy as np
import pytest
from tests.flat_words import packed_bins

grain = pytest.importorskip("grain", reason="grain is not installed")
experimental = pytest.importorskip("grain.experimental")

SEED = 3


@pytest.fixture
def make_source(corpus):
    """Function: PackedBins of dataset `rows` as NumPy; keywords as PackedBins'."""

    def make(**options):
        defaults = {"seed": SEED, "output": "numpy"}
        return packed_bins(f"embedded:{corpus.root}", "rows", corpus.megatron, **(defaults | options))

    return make


def elastic(source, shard, num_shards, batch_size=12):
    """An iterator of one shard, whose state fits any number of shards."""
    shards = grain.sharding.ShardOptions(shard_index=shard, shard_count=num_shards)
    return iter(experimental.ElasticIterator(grain.MapDataset.source(source), batch_size, shards))


def positions_of(batches):
    return [position for batch in batches for position in batch["position"].tolist()]


def test_it_is_a_source_of_grains(make_source):
    source = make_source()
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    dataset = grain.MapDataset.source(source)
    assert len(dataset) == len(source)
    for name, value in dataset[7].items():
        assert np.array_equal(value, source[7][name])
    assert [row["position"] for row in dataset._getitems([5, 2])] == [5, 2]


@pytest.mark.parametrize("num_threads", [1, 16])
def test_a_pipeline_without_shuffle_gives_the_epoch_in_order(make_source, num_threads):
    source = make_source()
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=32)
    batches = list(grain.MapDataset.source(source).batch(8).to_iter_dataset(options))
    assert positions_of(batches) == list(range(len(source)))
    assert batches[0]["input_ids"].shape == (8, 256)
    assert np.array_equal(batches[1]["input_ids"][3], source[11]["input_ids"])


def test_a_shuffled_pipeline_gives_every_bin_once(make_source):
    source = make_source()
    batches = list(grain.MapDataset.source(source).shuffle(seed=1).batch(8).to_iter_dataset())
    assert positions_of(batches) != sorted(positions_of(batches))
    assert sorted(positions_of(batches)) == list(range(len(source)))


def test_epochs_follow_each_other_in_the_indices(make_source):
    source = make_source(num_epochs=2)
    whole = list(grain.MapDataset.source(source).to_iter_dataset())
    half = len(source) // 2
    assert [int(row["position"]) for row in whole] == 2 * list(range(half))
    assert not np.array_equal(whole[0]["input_ids"], whole[half]["input_ids"])
    assert np.array_equal(whole[half]["input_ids"], make_source(epoch=1)[0]["input_ids"])


def test_a_shard_goes_on_from_grains_own_state(make_source):
    def shard():
        return iter(grain.MapDataset.source(make_source())[1::3].batch(4).to_iter_dataset())

    whole = positions_of(shard())
    batches = shard()
    seen = positions_of(next(batches) for _ in range(5))
    state = batches.get_state()
    again = shard()
    again.set_state(state)
    assert seen + positions_of(again) == whole


def test_another_number_of_shards_goes_on_with_every_bin_once(make_source):
    source = make_source(num_bins_multiple_of=12)
    shards = [elastic(source, shard, 2) for shard in range(2)]
    seen = positions_of(next(batches) for _ in range(4) for batches in shards)
    states = [batches.get_state() for batches in shards]
    assert states[0] == states[1]
    rest = []
    for shard in range(3):
        batches = elastic(make_source(num_bins_multiple_of=12), shard, 3)
        batches.set_state(states[0])
        rest += positions_of(batches)
    assert not set(seen) & set(rest)
    found = Counter(seen + rest)
    num_empty = found.pop(-1, 0)
    assert found == Counter(range(len(source) - num_empty))


def test_the_same_through_a_cursor_of_ours(make_source):
    source = make_source(num_bins_multiple_of=12)
    shards = [elastic(source, shard, 2) for shard in range(2)]
    seen = positions_of(next(batches) for _ in range(4) for batches in shards)
    cursor = source.cursor_after(shards[0].get_state()["global_next_index"])
    resumed = make_source(num_bins_multiple_of=10)
    resumed.load_state_dict(cursor)
    rest = positions_of(batch for shard in range(5) for batch in elastic(resumed, shard, 5, batch_size=10))
    found = Counter(seen + rest)
    found.pop(-1, None)
    assert found == Counter(range(len(make_source())))


def test_grains_loader_compares_the_source_with_its_checkpoint(make_source):
    def loader(**options):
        source = make_source(**options)
        sampler = grain.samplers.IndexSampler(
            len(source), shuffle=False, num_epochs=1, shard_options=grain.sharding.NoSharding()
        )
        return iter(
            grain.DataLoader(
                data_source=source, sampler=sampler, operations=[grain.transforms.Batch(8)], worker_count=0
            )
        )

    batches = loader()
    seen = positions_of(next(batches) for _ in range(3))
    state = batches.get_state()
    again = loader()
    again.set_state(state)
    assert seen + positions_of(again) == positions_of(loader())
    with pytest.raises(ValueError, match="PackedBins"):
        loader(seed=4).set_state(state)
