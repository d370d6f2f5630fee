"""Megatron's iterator: endless, resumable, read by few ranks and handed to all; with megatron-core's own parts."""

import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.flat_words import packed_data, prepare

from packhorse.client import LoaderOptions, PackedDataset
from packhorse.prepare import PlanOptions
from packhorse.prepare import prepare as prepare_with_options
from packhorse.topology import ContextRule, Topology
from packhorse.trainers import PackedData, create_megatron_iterator

HAS_MEGATRON = find_spec("megatron") is not None and find_spec("megatron.core") is not None
RUN_SECONDS = 200
OWN_WORDS = ("micro_batch_size", "seq_length", "sequence_parallel", "consumed_samples", "dynamic_context_parallel")


@pytest.fixture
def make_iterator(running_server, corpus, no_launcher):
    """Function: an iterator over `truncated`, a few steps an epoch, for rank 0 of one unless told otherwise."""

    def make(name="truncated", **options):
        defaults = {"micro_batch_size": 60, "seed": 3, "rank": 0, "world_size": 1, "num_workers": 0, "device": "cpu"}
        words = defaults | options
        own = {key: words.pop(key) for key in OWN_WORDS if key in words}
        return create_megatron_iterator(packed_data(running_server.target, name, corpus.megatron, **words), **own)

    return make


def tokens_of(batches):
    return [batch["tokens"].tolist() for batch in batches]


def test_epochs_follow_each_other_without_end(make_iterator, make_dataset):
    dataset = make_dataset("truncated", batch_size=60, preset="megatron-lm")
    num_steps = len(dataset)
    assert num_steps == 3
    expected = [batch for _ in dataset.epochs(3) for batch in dataset]
    came = list(islice(make_iterator(), 3 * num_steps))
    assert tokens_of(came) == tokens_of(expected)
    assert list(came[0]) == [
        "tokens",
        "labels",
        "loss_mask",
        "position_ids",
        "cu_seqlens",
        "max_seqlen",
        "padding_mask",
    ]
    for one, other in zip(came, expected, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("num_consumed", [1, 3, 7])
def test_goes_on_from_a_state_or_behind_consumed_samples(num_consumed, make_iterator):
    whole = make_iterator()
    consumed = list(islice(whole, num_consumed))
    state, rest = whole.state_dict(), tokens_of(islice(whole, 3))
    resumed = make_iterator()
    list(islice(resumed, 1))
    resumed.load_state_dict(state)
    assert tokens_of(islice(resumed, 3)) == rest
    assert tokens_of(islice(make_iterator(consumed_samples=60 * len(consumed)), 3)) == rest


def test_states_that_megatron_saved_fit_other_numbers_of_ranks(make_iterator, tmp_path, corpus):
    """`maybe_save_dataloader_state` writes one file for each data-parallel rank."""
    seen = Counter()
    for rank in range(2):
        iterator = make_iterator("rows", rank=rank, world_size=2, micro_batch_size=20)
        for batch in islice(iterator, 3):
            seen += targets_of(batch)
        place = tmp_path / "iter_0000003" / "mp_rank_00_000" / f"train_dataloader_dprank{rank:03d}.pt"
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"dataloader_state_dict": iterator.save_state()}, place)
    resumed = make_iterator("rows", micro_batch_size=7)
    resumed.load_saved(tmp_path, 3)
    batch = next(resumed)
    while resumed.state_dict()["epoch"] == 0:
        seen += targets_of(batch)
        batch = next(resumed)
    assert seen == Counter(pair for tokens in corpus.sequences for pair in pairwise(tokens.tolist()))
    with pytest.raises(FileNotFoundError, match=r"iter_0000004; give the folder of --dataloader-save"):
        resumed.load_saved(tmp_path, 4)


def targets_of(batch):
    """Counter of (token, the one to predict after it)."""
    is_target = batch["loss_mask"].bool()
    return Counter(zip(batch["tokens"][is_target].tolist(), batch["labels"][is_target].tolist(), strict=True))


def test_what_does_not_fit_is_refused(make_iterator):
    with pytest.raises(
        ValueError, match=r"max_seq_len 96, and seq_length is 512; start Megatron with --seq-length 96,"
    ):
        next(make_iterator(seq_length=512))
    with pytest.raises(ValueError, match=r"sets the preset itself; leave preset out"):
        make_iterator(preset="megatron")
    with pytest.raises(ValueError, match="takes micro_batch_size; leave batch_size out"):
        make_iterator(batch_size=2)
    with pytest.raises(ValueError, match=r"consumed_samples 90 is not a multiple of the 60 bins"):
        make_iterator(consumed_samples=90)
    with pytest.raises(ValueError, match=r"an epoch of this dataset has no step of this size"):
        next(make_iterator(micro_batch_size=500, remainder="drop"))
    with pytest.raises(ValueError, match=r"an epoch of this dataset has no step of this size"):
        make_iterator(micro_batch_size=500, remainder="drop", consumed_samples=500)


RULE = ContextRule(tokens_per_rank=64, max_context_parallel=4)


def test_shared_bins_come_once_over_a_kill_and_a_resume(make_server, tmp_path, corpus, no_launcher):
    """Eight ranks, of which the last saved state counts; then the server dies, and four ranks go on with another."""
    lengths = [len(tokens) for tokens in corpus.sequences[:300]]
    plan = PlanOptions(max_seq_len=256, tokens_per_rank=64, align=8)
    prepare_with_options(lengths=lengths, output=tmp_path / "root" / "shared", plan=plan)

    def steps_of(server, rank, num_ranks, state):
        """Steps of the epoch from the state on, each with the state after it."""
        loader = LoaderOptions(num_workers=0, device="cpu", rank=(rank, num_ranks))
        topology = Topology(balance="micro-step", accumulation=2)
        data = PackedData(server.target, "shared", corpus.megatron, seed=5, topology=topology, loader=loader)
        iterator = create_megatron_iterator(data, micro_batch_size=1, dynamic_context_parallel=True)
        if state is not None:
            iterator.load_state_dict(state)
        while True:
            step = iterator.next_step()
            if iterator.state_dict()["epoch"]:
                return iterator.close()
            yield step, iterator.save_state()

    seen, sums, state = Counter(), [0.0, 0.0], None
    for num_ranks, num_steps in ((8, 2), (4, None)):
        with make_server(tmp_path / "root") as server:
            for rank in range(num_ranks):
                steps = steps_of(server, rank, num_ranks, state)
                for step, saved in islice(steps, num_steps):
                    after = saved
                    count_shared(seen, step.micro_batches)
                    sums[0] += step.num_tokens / RULE.max_context_parallel
                    sums[1] += step.sum_of_squares / RULE.max_context_parallel
                next(steps, None)  # is lost: it was trained on after the last save
            server.kill()
        state = after
    assert seen == Counter(pair for tokens in corpus.sequences[:300] for pair in pairwise(tokens.tolist()))
    assert sums == [sum(lengths), sum(length**2 for length in lengths)]


def count_shared(seen, micro_batches):
    """Adds to `seen` each target's share: each of the ranks that it is computed on has the whole sequence."""
    for batch in micro_batches:
        for pair, count in targets_of(batch).items():
            seen[pair] += count / int(batch["local_cp_size"])


def test_what_dynamic_context_parallelism_cannot_have_is_refused(make_iterator):
    for options in ({"micro_batch_size": 2}, {"micro_batch_size": 1, "consumed_samples": 8}):
        with pytest.raises(ValueError, match="takes micro_batch_size 1, and load_saved instead of consumed_samples"):
            make_iterator(dynamic_context_parallel=RULE, **options)
    with pytest.raises(ValueError, match="1 ranks are not a multiple of max_context_parallel 4"):
        make_iterator(dynamic_context_parallel=RULE, micro_batch_size=1)
    with pytest.raises(ValueError, match="bins of the rule have 256 tokens, and seq_length is 96"):
        make_iterator(dynamic_context_parallel=RULE, micro_batch_size=1, world_size=4, seq_length=96)
    with pytest.raises(ValueError, match="dynamic_context_parallel needs a dataset prepared with tokens_per_rank"):
        make_iterator(dynamic_context_parallel=True, micro_batch_size=1)
    with pytest.raises(ValueError, match="next_step needs an iterator made with dynamic_context_parallel"):
        make_iterator().next_step()


@pytest.fixture(scope="module")
def of_ranks(corpus, tmp_path_factory):
    """The dataset, aligned to 4; case → what each of four ranks was handed; what Megatron's own code made of it."""
    if not HAS_MEGATRON:
        pytest.skip("megatron-core is not installed")
    folder = tmp_path_factory.mktemp("megatron")
    lengths = [len(tokens) for tokens in corpus.sequences[:300]]
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    prepare(
        folder / "lengths.parquet",
        length_column="length",
        output=folder / "root" / "aligned",
        max_seq_len=256,
        align=4,
        progress=False,
    )
    for ranks in (2, 4):
        plan = PlanOptions(max_seq_len=256, tokens_per_rank=256 // ranks, align=8)
        prepare_with_options(lengths=lengths, output=folder / "root" / f"shared-by-{ranks}", plan=plan)
    script = Path(__file__).with_name("megatron_ranks.py")
    arguments = (f"embedded:{folder / 'root'}", "aligned", corpus.megatron)
    done = subprocess.run(
        [sys.executable, script, folder, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    came = {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(4)]
        for name in ("tp2-dp2", "tp2-cp2", "tp2-cp2-peers", "pp4", "dynamic", "dynamic-dp2", "dynamic-tp2")
    }
    return (
        arguments,
        came,
        {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in ("by_megatron", "losses")},
    )


def flat_batches(arguments, rank=0, world_size=1):
    """The first micro-batches of a data-parallel rank, end to end, by the preset for loops of one's own."""
    dataset = PackedDataset(*arguments, batch_size=2, preset="megatron", rank=(rank, world_size))
    return list(islice(dataset, 3))


@pytest.mark.long
def test_only_first_tensor_parallel_ranks_read_and_their_peers_have_the_same(of_ranks):
    arguments, came, _ = of_ranks
    ranks = came["tp2-dp2"]
    assert [rank["reads"] for rank in ranks] == [rank["tensor"] == 0 for rank in ranks]
    assert sorted((rank["data"], rank["tensor"]) for rank in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for rank in ranks:
        for batch, plain in zip(rank["batches"], flat_batches(arguments, rank["data"], 2), strict=True):
            for key in ("tokens", "labels", "loss_mask", "position_ids", "padding_mask"):
                assert torch.equal(batch[key], plain[key])
                assert batch[key].dtype == plain[key].dtype
            offsets = plain["cu_seqlens_q_padded"]
            params = batch["packed_seq_params"]
            assert params.pop("qkv_format") == "thd"
            longest = int(offsets.diff().max())
            assert (params.pop("max_seqlen_q"), params.pop("max_seqlen_kv")) == (longest, longest)
            assert len(params) == 4
            assert all(value.dtype == torch.int32 and torch.equal(value, offsets) for value in params.values())
    states = {tuple(rank["saved"].items()) for rank in ranks if rank["reads"]}
    assert len(states) == 1  # one cursor for all


@pytest.mark.long
@pytest.mark.parametrize("case", ["tp2-cp2", "tp2-cp2-peers"])
def test_context_parallel_ranks_share_each_segment(of_ranks, case):
    arguments, came, made = of_ranks
    ranks = came[case]
    assert sorted((rank["context"], rank["tensor"]) for rank in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for step, plain in enumerate(flat_batches(arguments)):
        offsets = plain["cu_seqlens_q_padded"].tolist()
        for rank in ranks:
            chunks = [[], []]
            for start, end in pairwise(offsets):
                quarter = (end - start) // 4
                pieces = [plain["tokens"][0, start + i * quarter : start + (i + 1) * quarter] for i in range(4)]
                chunks[0] += [pieces[0], pieces[3]]
                chunks[1] += [pieces[1], pieces[2]]
            assert torch.equal(rank["batches"][step]["tokens"][0], torch.cat(chunks[rank["context"]]))
    # Megatron's own cut of the first row, and ours of the first two rows: each row is cut by itself.
    for rank in ranks:
        theirs, ours = made["by_megatron"][rank["context"]], rank["batches"][0]
        num_tokens = theirs["tokens"].shape[1]
        for key in ("tokens", "labels", "loss_mask", "position_ids", "padding_mask"):
            assert torch.equal(ours[key][:, :num_tokens], theirs[key])
        assert theirs["packed_seq_params"].keys() == ours["packed_seq_params"].keys()


@pytest.mark.long
def test_multi_token_prediction_finds_no_segment_of_zero_tokens(of_ranks):
    """Which rows with fewer segments than others have, and which Megatron's `roll_tensor` cannot index."""
    arguments, came, _ = of_ranks
    rows = PackedDataset(*arguments, batch_size=2, preset="megatron-lm", rank=(0, 1))
    assert any((batch["cu_seqlens"].diff() == 0).any() for batch in islice(rows, 3))
    for rank in came["tp2-cp2"]:
        for batch in rank["batches"]:
            assert (batch["packed_seq_params"]["cu_seqlens_q"].diff() > 0).all()
            is_target = batch["loss_mask"].bool()
            assert torch.equal(batch["next_tokens"][is_target], batch["labels"][is_target])


@pytest.mark.long
def test_pipeline_stages_get_what_they_compute_with(of_ranks):
    arguments, came, _ = of_ranks
    first, *middle, last = came["pp4"]
    for step, plain in enumerate(flat_batches(arguments)):
        assert torch.equal(first["batches"][step]["tokens"], plain["tokens"])
        assert torch.equal(last["batches"][step]["labels"], plain["labels"])
        for rank, absent in (
            (first, {"labels", "loss_mask", "attention_mask"}),
            *((stage, {"tokens", "labels", "loss_mask", "position_ids", "attention_mask"}) for stage in middle),
            (last, {"tokens", "position_ids", "attention_mask"}),
        ):
            batch = rank["batches"][step]
            assert {key for key, value in batch.items() if value is None} == absent | {"next_tokens"}
            assert torch.equal(batch["padding_mask"], plain["padding_mask"])  # any stage may have experts
            assert torch.equal(batch["packed_seq_params"]["cu_seqlens_q"], plain["cu_seqlens_q_padded"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["dynamic", "dynamic-dp2", "dynamic-tp2"])
def test_ranks_share_bins_under_dynamic_context_parallelism(name, of_ranks, corpus):
    ranks = of_ranks[1][name]
    num_collectives = (
        len(ranks[0]["num_steps"]) if name == "dynamic-dp2" else 0
    )  # two bins at a time: sums are added up
    assert [rank["num_collectives"] for rank in ranks] == [num_collectives] * 4
    lengths = [len(tokens) for tokens in corpus.sequences[:300]]
    sums = [sum(lengths), sum(length**2 for length in lengths)]
    assert [rank["sums"] for rank in ranks] == [sums if rank["tensor"] == 0 else [0, 0] for rank in ranks]
    assert len({tuple(rank["num_steps"]) for rank in ranks}) == 1
    assert set(ranks[0]["num_steps"][:-2]) == {3}
    seen, sizes = Counter(), set()
    for rank in ranks:
        for batch, peer in zip(rank["batches"], ranks[rank["rank"] - rank["tensor"]]["batches"], strict=True):
            size = batch["cp_size"]
            assert batch["tokens"].shape[1] * size == batch["offsets"][-1]
            assert torch.equal(batch["tokens"], peer["tokens"])  # of the first tensor-parallel rank
            assert (batch["ranks"] is None) == (size == 1)
            if rank["tensor"] == 0:
                seen += targets_of(batch)
                sizes.add(size)
                check_against_megatron(batch)
    assert sizes == {1, 2, 4} - ({4} if name != "dynamic" else set())
    assert seen == Counter(pair for tokens in corpus.sequences[:300] for pair in pairwise(tokens.tolist()))


def check_against_megatron(batch):
    """Keys and forms that Megatron's sequence packing asks of a micro-batch, and its own cut where it makes one."""
    whole = batch["whole"]
    num_tokens = len(whole["tokens"])
    assert {key: (value.dtype, value.shape) for key, value in whole.items() if "cu_seqlens" not in key} == {
        "tokens": (torch.int64, (num_tokens,)),
        "labels": (torch.int64, (num_tokens,)),
        "loss_mask": (torch.float32, (num_tokens,)),
        "position_ids": (torch.int64, (num_tokens,)),
        "padding_mask": (torch.bool, (num_tokens,)),
        "max_seqlen": (torch.int32, ()),
        "local_cp_size": (torch.int32, ()),
    }
    lengths, rooms = whole["cu_seqlens"].diff(), whole["cu_seqlens_padded"].diff()
    assert whole["cu_seqlens"].dtype == whole["cu_seqlens_padded"].dtype == torch.int32
    assert whole["cu_seqlens_padded"][-1] == num_tokens
    assert (lengths <= rooms).all()
    assert (~whole["padding_mask"]).sum() == lengths.sum()
    assert whole["max_seqlen"] == rooms.max()
    if "theirs" in batch:
        assert batch["theirs"]["ranks"] == batch["ranks"]
        for key in ("tokens", "labels", "loss_mask", "position_ids"):
            assert torch.equal(batch["theirs"][key], batch[key])


@pytest.mark.long
def test_megatron_s_own_model_has_the_loss_of_the_sequences_alone(of_ranks):
    packed, alone = of_ranks[2]["losses"]
    assert packed[0] > 1000  # a sum over some hundred tokens
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)
