"""`PackedBins`: an epoch by position, in every loader's hands the same bins, each exactly once."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from tests.flat_words import packed_bins, packed_dataset
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from packhorse.client import DigestMismatchError, PackedBins, connect
from packhorse.client.errors import RequestTooLargeError
from packhorse.client.loading.workers.preemption import protected_fork_server
from packhorse.client.presets import megatron_lm_preset
from packhorse.client.sources import TokenSourceError

SEED = 3


@pytest.fixture(scope="module")
def make_bins(corpus):
    """Function: PackedBins of a dataset of the shared corpus, without a server; keywords as PackedBins'."""

    def make(name="rows", target=f"embedded:{corpus.root}", **options):
        return packed_bins(target, name, corpus.megatron, **({"seed": SEED} | options))

    return make


@pytest.fixture(scope="module")
def stream_of(corpus):
    """Function: PackedDataset of the same bins, for comparison."""

    def make(name="rows", batch_size=8, **options):
        options = {"seed": SEED, "rank": 0, "world_size": 1, "remainder": "empty"} | options
        return packed_dataset(f"embedded:{corpus.root}", name, corpus.megatron, batch_size=batch_size, **options)

    return make


def sequences_in(rows):
    """Counter of the token tuples in rows of `input_ids`, `sequence_ids` and `labels`; padding left out."""
    found = Counter()
    for row in rows:
        tokens, numbers = np.asarray(row["input_ids"]), np.asarray(row["sequence_ids"])
        labels, positions = np.asarray(row["labels"]), np.asarray(row["position_ids"])
        for begin in np.flatnonzero(positions == 0).tolist():
            own = numbers == numbers[begin]
            is_padding = (labels[own] == -100).all() and not tokens[own].any()
            if not is_padding:
                found[tuple(tokens[own].tolist())] += 1
    return found


def rows_of(batches):
    return [{name: value[i] for name, value in batch.items()} for batch in batches for i in range(len(batch["labels"]))]


@pytest.fixture(scope="module")
def everything(corpus):
    """Counter of the token tuples of dataset `rows`, as `sequences_in` finds them."""
    kept = [tuple(tokens.tolist()) for tokens in corpus.sequences]
    return Counter(tokens for tokens in kept if any(tokens) and len(tokens) > 1)


def without_single(found):
    """Sequences of one token have no target: they look like padding where the token is 0."""
    return Counter({tokens: count for tokens, count in found.items() if len(tokens) > 1})


def test_rows_are_those_of_the_stream_in_its_order(make_bins, stream_of):
    bins = make_bins()
    streamed = [row for batch in stream_of() for row in rows_of([{n: batch[n] for n in bins[0] if n != "position"}])]
    assert 0 < len(bins) <= len(streamed)
    for position in range(len(bins)):
        row = bins[position]
        assert row.pop("position") == position
        for name, value in row.items():
            assert value.shape == (256,)
            assert torch.equal(value, streamed[position][name]), name


@pytest.mark.parametrize("context", ["fork", pytest.param(protected_fork_server(), id="forkserver")])
def test_a_plain_loader_shuffles_exactly(make_bins, running_server, everything, context):
    bins = make_bins(target=running_server.target)
    assert len(bins) > 100  # asked in a child: this process has not used gRPC for it
    loader = DataLoader(bins, batch_size=8, shuffle=True, num_workers=1, multiprocessing_context=context, timeout=60)
    batches = list(loader)
    assert without_single(sequences_in(rows_of(batches))) == everything
    order = torch.cat([batch["position"] for batch in batches])
    assert order.tolist() != sorted(order.tolist())
    assert order.sort().values.tolist() == list(range(len(bins)))


def test_collate_makes_the_batches_of_the_stream(make_bins, stream_of, assert_same_batches):
    for options in ({}, {"preset": "padding-free"}, {"preset": "torchtune"}, {"flatten": True, "shift_labels": True}):
        bins = make_bins(num_bins_multiple_of=8, **options)
        batches = list(DataLoader(bins, batch_size=8, collate_fn=bins.collate))
        streamed = [{n: v for n, v in batch.items() if n != "cursor"} for batch in stream_of(**options)]
        for batch in [*batches, *streamed]:
            batch["seq_lens"] = [lengths.tolist() for lengths in batch.get("seq_lens", [])]
        assert_same_batches([dict(batch) for batch in batches], streamed)


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_of_a_distributed_sampler_share_the_epoch_exactly(make_bins, everything, shuffle):
    bins = make_bins(num_bins_multiple_of=3 * 4)
    assert len(bins) % 12 == 0
    rows = []
    for rank in range(3):
        sampler = DistributedSampler(bins, 3, rank, shuffle=shuffle)
        batches = list(DataLoader(bins, batch_size=4, sampler=sampler))
        assert {len(batch["labels"]) for batch in batches} == {4}
        rows += rows_of(batches)
    assert without_single(sequences_in(rows)) == everything
    positions = Counter(int(row["position"]) for row in rows)
    assert set(positions) - {-1} == set(range(max(positions) + 1))


@pytest.mark.parametrize("num_processes", [1, 2])
def test_accelerate_deals_the_rows_exactly(make_bins, everything, num_processes):
    bins = make_bins(num_bins_multiple_of=num_processes * 4)
    if num_processes == 1:
        loaders = [Accelerator(cpu=True).prepare(DataLoader(bins, batch_size=4))]
    else:
        loaders = [
            prepare_data_loader(
                DataLoader(bins, batch_size=4), num_processes=2, process_index=rank, put_on_device=False
            )
            for rank in range(2)
        ]
    rows = [row for loader in loaders for row in rows_of(list(loader))]
    assert without_single(sequences_in(rows)) == everything
    loaders[0].set_epoch(1)
    assert bins.epoch == 1


def test_set_epoch_reaches_workers_that_live_on(make_bins):
    bins = make_bins()
    loader = DataLoader(bins, batch_size=16, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    epochs = []
    for epoch in (0, 1, 0):
        bins.set_epoch(epoch)
        epochs.append(torch.cat([batch["input_ids"] for batch in loader]))
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[1][5], make_bins(epoch=1)[5]["input_ids"])


def test_indices_beyond_an_epoch_are_the_next_one(make_bins, everything):
    bins = make_bins(num_epochs=3, num_bins_multiple_of=10, skip={1: "0:7"})
    later = make_bins(epoch=1, skip={1: "0:7"})
    first = make_bins(num_bins_multiple_of=10)
    assert len(later) == len(make_bins()) - 7
    assert len(bins) == 2 * len(first) - -(-len(later) // 10) * -10
    across = bins.__getitems__([len(first) - 1, len(first), len(first) + 1])
    assert torch.equal(across[1]["input_ids"], later[0]["input_ids"])
    assert torch.equal(across[2]["input_ids"], later[1]["input_ids"])
    assert without_single(sequences_in(bins[i] for i in range(len(first)))) == everything


def test_a_cursor_goes_on_under_other_ranks_and_in_the_stream(make_bins, stream_of, everything):
    bins = make_bins(num_bins_multiple_of=2 * 4)
    samplers = [iter(DistributedSampler(bins, 2, rank, shuffle=False)) for rank in range(2)]
    done = [bins[next(sampler)] for _ in range(5 * 4) for sampler in samplers]
    cursor = bins.cursor_after(len(done))
    assert cursor["position"] == 40

    resumed = make_bins(num_bins_multiple_of=3 * 2)
    resumed.load_state_dict(cursor)
    rest = [resumed[i] for rank in range(3) for i in DistributedSampler(resumed, 3, rank, shuffle=False)]
    assert without_single(sequences_in([*done, *rest])) == everything
    resumed.set_epoch(0)
    assert int(resumed[0]["position"]) == 40
    resumed.set_epoch(1)
    assert int(resumed[0]["position"]) == 0

    stream = stream_of()
    stream.load_state_dict(cursor)
    batch = next(iter(stream))
    assert torch.equal(batch["input_ids"][0], rest[0]["input_ids"])
    back = make_bins()
    back.load_state_dict(batch["cursor"])
    assert int(back[0]["position"]) == 48
    end = bins.cursor_after(len(bins))
    assert end["position"] == len(make_bins())
    with pytest.raises(IndexError, match=rf"index {len(bins)} is outside of {len(bins)} rows"):
        bins.cursor_after(len(bins) + 1)


def test_a_cursor_of_something_else_is_refused(make_bins):
    cursor = make_bins().cursor_after(3)
    with pytest.raises(ValueError, match="seed"):
        make_bins(seed=4).load_state_dict(cursor)
    other = make_bins("truncated")
    other.load_state_dict(cursor)
    with pytest.raises(DigestMismatchError, match="is not the one that this run began with"):
        len(other)
    skipping = make_bins(skip="0:2")
    skipping.load_state_dict(cursor)
    with pytest.raises(DigestMismatchError, match="are to be skipped"):
        skipping[0]
    balanced = {"accumulation": 4, "balance": "micro-step"}  # a cursor's topology is that of its run
    with pytest.raises(ValueError, match="within an optimizer step"):
        make_bins().load_state_dict(cursor | {"steps_into_optimizer_step": 1, "topology": balanced})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stateful_loader_within_a_balanced_optimizer_step_is_refused(make_bins, stream_of, num_workers):
    dataset = stream_of(batch_size=2, accumulation=4, balance="micro-step")
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(ValueError, match="within an optimizer step"):
        make_bins().load_state_dict(loader.state_dict())
    next(batches)
    bins = make_bins()
    bins.load_state_dict(loader.state_dict())
    assert int(bins[0]["position"]) == 8


def test_a_stateful_loader_goes_on_where_it_stood(make_bins):
    bins = make_bins()
    loader = StatefulDataLoader(bins, batch_size=8, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    seen = [next(batches)["position"] for _ in range(4)]
    state = loader.state_dict()
    del batches
    again = StatefulDataLoader(bins, batch_size=8, num_workers=1, multiprocessing_context="fork")
    again.load_state_dict(state)
    rest = [batch["position"] for batch in again]
    assert torch.cat([*seen, *rest]).tolist() == list(range(len(bins)))


class Counting:
    """A client that counts its requests for bins, and refuses those of more than `most`."""

    def __init__(self, client, most):
        self._client, self._most = client, most
        self.requests = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get_bins(self, dataset, *, positions, **options):
        self.requests.append(len(positions))
        if len(positions) > self._most:
            raise RequestTooLargeError("too many", {"limit": str(self._most)})
        return self._client.get_bins(dataset, positions=positions, **options)


@pytest.fixture
def count_requests(corpus):
    with connect(f"embedded:{corpus.root}") as client:
        yield lambda most=10**9: Counting(client, most)


def test_many_positions_are_one_request(make_bins, count_requests):
    counting = count_requests()
    bins = make_bins(target=lambda: counting)
    assert [int(row["position"]) for row in bins.__getitems__([3, 200, 7, 150, 3])] == [3, 200, 7, 150, 3]
    assert counting.requests == [5]


def test_a_request_that_is_too_large_is_split(make_bins, count_requests):
    counting = count_requests(most=4)
    bins = make_bins(target=lambda: counting)
    asked = list(range(100, 0, -10))
    assert [int(row["position"]) for row in bins.__getitems__(asked)] == asked
    assert counting.requests == [10, 4, 6, 4, 2]


def test_an_epoch_in_order_makes_few_requests(make_bins, count_requests):
    counting = count_requests()
    bins = make_bins(target=lambda: counting)
    assert [int(row["position"]) for row in bins] == list(range(len(bins)))
    assert len(counting.requests) < 8


def test_numpy_rows_are_plain_dicts_of_arrays(make_bins):
    row = make_bins(output="numpy")[4]
    assert type(row) is dict
    for name in ("input_ids", "labels", "sequence_ids", "position_ids"):
        assert isinstance(row[name], np.ndarray)
        assert row[name].shape == (256,)
    assert row["position"] == 4
    maxtext = make_bins(output="numpy", preset="maxtext")[4]
    assert {value.dtype.name for value in maxtext.values()} == {"int32"}
    assert np.array_equal(maxtext["inputs"], row["input_ids"])
    lengths = make_bins(output="numpy", preset="torchtune")[4]["seq_lens"]
    assert isinstance(lengths, np.ndarray)
    assert lengths.sum() == 256


def test_offsets_of_a_fixed_width_make_rows(make_bins):
    bins = make_bins(preset=megatron_lm_preset(max_sequences=100))
    rows = [bins[index] for index in range(20)]
    assert {row["cu_seqlens"].shape for row in rows} == {(102,)}
    assert {int(row["cu_seqlens"][-1]) for row in rows} == {int(row["max_seqlen"]) for row in rows} == {256}
    assert len({len(row["cu_seqlens"].unique()) for row in rows}) > 1


def test_a_copy_by_pickle_reads_the_same(make_bins):
    bins = make_bins()
    row = bins[9]
    copy = pickle.loads(pickle.dumps(bins))
    assert torch.equal(copy[9]["input_ids"], row["input_ids"])
    assert repr(copy) == repr(bins) == "PackedBins('rows', seed=3, epoch=0, num_epochs=1)"
    assert repr(make_bins(skip="1:2", num_bins_multiple_of=4)).endswith(
        "skip='1:2', epoch=0, num_epochs=1, num_bins_multiple_of=4)"
    )


def test_indices_are_those_of_a_sequence(make_bins):
    bins = make_bins()
    assert torch.equal(bins[-1]["input_ids"], bins[len(bins) - 1]["input_ids"])
    assert torch.equal(bins[np.int64(1)]["input_ids"], bins[torch.tensor(1)]["input_ids"])
    assert [int(row["position"]) for row in Subset(bins, [1, 0]).__getitems__([0, 1])] == [1, 0]
    assert len(bins.__getitems__([])) == 0
    for index in (len(bins), -len(bins) - 1):
        with pytest.raises(IndexError, match=f"index {index} is outside of {len(bins)} rows"):
            bins[index]


@pytest.mark.parametrize("options", [{"preset": "padding-free"}, {"preset": "megatron"}, {"flatten": True}])
def test_what_makes_no_rows_says_what_to_do(make_bins, options):
    with pytest.raises(ValueError, match=r"not rows; give the DataLoader collate_fn=bins\.collate"):
        make_bins(**options)[0]


def test_arguments_out_of_range_are_refused(make_bins, corpus):
    for options, message in (
        ({"num_epochs": 0}, "num_epochs must be an integer of at least 1, got 0"),
        ({"num_epochs": "2"}, "num_epochs must be an integer"),
        ({"num_bins_multiple_of": 2.5}, "num_bins_multiple_of must be an integer of at least 1"),
        ({"seed": 2**64}, "seed must be an integer in"),
        ({"epoch": -1}, "epoch must be an integer of at least 0, got -1"),
        ({"name": ""}, "dataset must be the dataset's name, got ''"),
        ({"output": "jax"}, "output must be 'torch' or 'numpy', got 'jax'"),
        ({"preset": "padding-free", "flatten": False}, "contradicts preset"),
    ):
        with pytest.raises(ValueError, match=message):
            make_bins(**options)
    with pytest.raises(ValueError, match=r"collate takes what bins\.__getitems__ returned"):
        make_bins().collate([make_bins()[0]])
    with pytest.raises(TokenSourceError):
        PackedBins(f"embedded:{corpus.root}", "rows", [[1, 2, 3]], seed=SEED)[0]
