"""Groups from a real server to batches: whole in every bin, under every topology, and after every resume."""

from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from tests.flat_words import packed_dataset, prepare
from torch.utils.data import DataLoader

from packhorse.cli import main
from packhorse.client import BatchFormat, MemoryDatasets, PackedBins, PackedDataset, Skips, Topology, connect
from packhorse.client.masks import build_boolean_mask, build_packing_attention_bias
from packhorse.losses import LossCounts, SequenceGroups, build_loss_weights
from packhorse.pictures import draw_bins, explain_step
from packhorse.proof import EpochOfStreams
from packhorse.rollouts import as_pair_batch, pack_pairs, pair_log_probs

NUM_GROUPS = 300


@pytest.fixture(scope="module")
def rollouts():
    """Columns of a table: tokens, prompt (the group) and id."""
    random = np.random.default_rng(5)
    sizes = random.integers(1, 5, NUM_GROUPS)
    num = int(sizes.sum())
    return {
        "tokens": [random.integers(1, 1000, length).tolist() for length in random.integers(1, 50, num)],
        "prompt": np.repeat(random.permutation(NUM_GROUPS) + 1000, sizes),
        "id": random.permutation(10 * num)[:num],
    }


@pytest.fixture(scope="module")
def groups(rollouts):
    """Group → ids of its sequences, in order."""
    found = {}
    for group, number in zip(rollouts["prompt"].tolist(), rollouts["id"].tolist(), strict=True):
        found.setdefault(group, []).append(number)
    return found


@pytest.fixture(scope="module")
def root(rollouts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    pq.write_table(pa.table(rollouts), folder / "rollouts.parquet")
    options = {"max_seq_len": 256, "progress": False}
    path = folder / "rollouts.parquet"
    prepare(path, id_column="id", group_column="prompt", output=folder / "root" / "rollouts", **options)
    prepare(path, output=folder / "root" / "plain", **options)
    (folder / "root" / "both.mixture.toml").write_text(
        "epoch_bins = 60\n\n[[stages]]\nweights = {rollouts = 2, plain = 1}\n"
    )
    return folder


@pytest.fixture(scope="module")
def target(root, make_server):
    with make_server(root / "root") as server:
        yield server.target


def whole_groups(batch, groups):
    """Groups of a batch in order; fails where one is not whole, in order, and in one row."""
    layout, ids, came = batch["layout"], batch["ids"].tolist(), []
    assert batch["group_ids"].tolist() == layout.group_ids.tolist()
    begin = 0
    for end in layout.row_ends.tolist():
        at = begin
        while at < end:
            group = int(layout.group_ids[at])
            size = len(groups[group])
            assert ids[at : at + size] == groups[group]
            assert set(layout.group_ids[at : at + size].tolist()) == {group}
            came.append(group)
            at += size
        assert at == end
        begin = end
    return came


@pytest.mark.parametrize("balance", ["none", "micro-step"])
def test_a_server_streams_whole_groups_and_the_audit_counts_members(target, root, groups, balance):
    topology = Topology(world_size=3, workers_per_rank=2, batch_size=4, balance=balance, accumulation=2)
    with connect(target) as client, connect(f"embedded:{root}/root") as embedded:
        info = client.get_dataset("rollouts")
        assert (info.num_groups, info.num_sequences) == (NUM_GROUPS, sum(map(len, groups.values())))
        streams = EpochOfStreams(
            client=client, dataset=info, epoch=1, seed=7, topology=topology, skip=Skips.parse(["3:6"])
        )
        report = streams.audit()
        assert (report.problems, report.sequences) == ([], info.num_sequences)
        for each in (client, embedded):
            block = each.get_bins("rollouts", epoch=1, seed=7, positions=[2, 0, 2])
            assert block.slice(0, 1).group_ids.tolist() == block.slice(2, 3).group_ids.tolist()
            ids, of_groups = block.ids.tolist(), block.group_ids.tolist()
            assert all(number in groups[group] for number, group in zip(ids, of_groups, strict=True))
        found = client.locate("rollouts", epoch=1, seed=7, ids=[*ids[:3], 10**9], topology=topology)
        assert [location.found for location in found] == [True] * 3 + [False]
        for location in found[:3]:
            one = client.get_bins("rollouts", epoch=1, seed=7, positions=[location.position])
            assert one.ids[location.index_in_bin] == location.id


def test_batches_hold_whole_groups_and_resume_under_another_world_size(root, groups):
    def batches(world_size, rank, state=None, **options):
        dataset = packed_dataset(
            *(f"embedded:{root}/root", "rollouts", str(root / "rollouts.parquet")),
            **{"batch_size": 2, "seed": 4, "rank": rank, "world_size": world_size} | options,
        )
        if state is not None:
            dataset.load_state_dict(state)
        return DataLoader(dataset, batch_size=None)

    first = [list(batches(3, rank)) for rank in range(3)]
    came = [group for rank in first for batch in rank for group in whole_groups(batch, groups)]
    assert sorted(came) == sorted(groups)
    before = [group for rank in first for batch in rank[:4] for group in whole_groups(batch, groups)]
    state = first[0][3]["cursor"]
    for world_size, options in ((2, {"batch_size": 3}), (5, {"flatten": False})):
        after = [
            group
            for rank in range(world_size)
            for batch in batches(world_size, rank, state, **options)
            for group in whole_groups(batch, groups)
        ]
        assert sorted(before + after) == sorted(groups)


def test_random_access_flattened_rows_and_pictures_know_groups(root, groups):
    tokens = str(root / "rollouts.parquet")
    bins = PackedBins(f"embedded:{root}/root", "rollouts", tokens, seed=4)
    assert whole_groups(bins.collate(bins.__getitems__([3, 0])), groups)
    flat = next(
        iter(PackedDataset(f"embedded:{root}/root", "rollouts", tokens, batch_size=4, batch=BatchFormat(flatten=True)))
    )
    assert flat["layout"].num_rows == 1
    assert whole_groups(flat, groups)
    with connect(f"embedded:{root}/root") as client:
        picture = draw_bins(client, "rollouts", positions=[0])
        assert {sequence.group for sequence in picture.rows[0].sequences} <= set(groups)
        step = explain_step(client, "rollouts", step=0, seed=1)
        assert step.facts()["bins"][0]["sequences"][0]["group"] in groups


def test_a_mixture_of_groups_and_single_sequences(root, groups, target):
    tokens = {name: str(root / "rollouts.parquet") for name in ("rollouts", "plain")}
    dataset = PackedDataset(target, "both", tokens, batch_size=6, seed=2, rank=(0, 1))
    for batch in dataset:
        of_groups = batch["group_ids"][batch["component_ids"] == list(batch["component_names"]).index("rollouts")]
        assert set(of_groups.tolist()) <= set(groups)
        assert (batch["group_ids"] >= 0).sum() == len(of_groups)
    with connect(target) as client:
        streams = EpochOfStreams(
            client=client, dataset=client.get_dataset("both"), epoch=0, seed=2, topology=Topology(world_size=4)
        )
        assert streams.audit().problems == []


def test_the_command_line_shows_groups(root, target):
    def run(*arguments):
        result = CliRunner().invoke(main, [*arguments, "--target", target])
        assert result.exit_code == 0, result.output
        return result.output

    assert '"groups": [' in run("stream", "rollouts", "--limit", "1")
    assert " of group 1" in run("show", "rollouts", "--step", "0", "--seed", "1")
    said = run("audit", "rollouts", "--tokens", str(root / "rollouts.parquet"), "--id-column", "id")
    assert "exactly once: yes" in said


def test_datasets_in_memory_have_groups(groups):
    datasets = MemoryDatasets({"pairs": [5, 3, 3, 5, 2, 2]}, max_seq_len=8, group_size=2)
    with connect(datasets) as client:
        block = client.get_bins("pairs", seed=1, positions=[0, 1, 2])
    assert sorted(pair.tolist() for pair in np.split(block.ids, 3)) == [[0, 1], [2, 3], [4, 5]]


def test_members_see_the_prefix_of_their_group_and_count_on_from_it(root, rollouts):
    tokens = str(root / "rollouts.parquet")
    options = {"batch_size": 3, "seed": 4, "rank": 0, "world_size": 1}
    dataset = packed_dataset(f"embedded:{root}/root", "rollouts", tokens, shared_prefix=True, **options)
    for batch, plain in zip(
        dataset, packed_dataset(f"embedded:{root}/root", "rollouts", tokens, **options), strict=True
    ):
        layout, positions = batch["layout"], batch["position_ids"].ravel()
        assert torch.equal(batch["input_ids"], plain["input_ids"])
        assert torch.equal(batch["labels"], plain["labels"])
        first = {}
        for i, group in enumerate(layout.group_ids.tolist()):
            prefix = first.setdefault(group, i)
            assert int(layout.prefixes[i]) == (prefix if prefix != i else -1)
            begin = int(layout.lengths[prefix]) if prefix != i else 0
            start, length = int(layout.starts[i]), int(layout.lengths[i])
            assert positions[start : start + length].tolist() == list(range(begin, begin + length))
        mask = build_boolean_mask(batch, "cpu", causal=True, head_dim=False)
        assert mask.sum() > build_boolean_mask(plain, "cpu", causal=True, head_dim=False).sum()
    with pytest.raises(ValueError, match="shared_prefix goes without a preset"):
        packed_dataset(f"embedded:{root}/root", "rollouts", tokens, shared_prefix=True, preset="rows", **options)


def test_a_shared_prefix_gives_each_response_the_logits_that_it_has_alone(no_launcher):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).double().eval()
    prompts, responses = [[5, 6, 7], [8, 9]], [[[1, 2], [3], [4, 5, 6]], [[7, 7], [8]]]
    sequences = [part for prompt, some in zip(prompts, responses, strict=True) for part in (prompt, *some)]
    table = np.array(
        [(len(part), group) for group, some in enumerate(responses) for part in (prompts[group], *some)],
        dtype=[("n", "i8"), ("g", "i8")],
    )
    with TemporaryDirectory() as folder:
        columns = {"length_column": "n", "group_column": "g"}
        prepare(lengths=table, **columns, max_seq_len=16, output=f"{folder}/set", progress=False)
        dataset = PackedDataset(
            f"embedded:{folder}", "set", sequences, batch_size=2, batch=BatchFormat(shared_prefix=True)
        )
        batch = next(iter(dataset))
    bias = build_packing_attention_bias(batch, torch.float64, "cpu", causal=True)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    with torch.no_grad():
        packed = model(**inputs, attention_mask=bias, use_cache=False).logits.flatten(0, 1)
        for i, number in enumerate(batch["ids"].tolist()):
            start, length = int(batch["layout"].starts[i]), int(batch["layout"].lengths[i])
            prefix = int(batch["layout"].prefixes[i])
            before = [] if prefix < 0 else sequences[int(batch["ids"][prefix])]
            alone = model(torch.tensor([before + sequences[number]]), use_cache=False).logits[0, len(before) :]
            torch.testing.assert_close(packed[start : start + length], alone)


def test_loss_weights_count_groups(root):
    tokens = str(root / "rollouts.parquet")
    dataset = PackedDataset(f"embedded:{root}/root", "rollouts", tokens, batch_size=4, seed=1, rank=(0, 1))
    batches = [batch for _, batch in zip(range(3), dataset, strict=False)]
    groups = SequenceGroups.of_batches(*batches)
    pairs = list(zip(batches, groups, strict=True))
    counts = sum(LossCounts.of_batch(batch, groups=numbers) for batch, numbers in pairs)
    weights = [build_loss_weights(batch, "sample", counts=counts, groups=numbers) for batch, numbers in pairs]
    of_groups = {}
    for batch, each in zip(batches, weights, strict=True):
        layout = batch["layout"]
        for i, group in enumerate(layout.group_ids.tolist()):
            begin = int(layout.starts[i])
            part = each.ravel()[begin : begin + int(layout.lengths[i])].sum().item()
            of_groups[group] = of_groups.get(group, 0.0) + part
    counted = [weight for weight in of_groups.values() if weight]
    assert len(counted) == int(counts.num_groups)
    assert counted == pytest.approx([1 / len(counted)] * len(counted))
    alone = build_loss_weights(batches[0], "sample")  # the batch's own groups, where it is the whole step
    assert alone.sum().item() == pytest.approx(1)


def test_pairs_of_a_grouped_dataset_have_the_log_probs_of_packed_pairs():
    prompts, chosen, rejected = [[5, 6], [7], [8, 9, 1]], [[1, 2], [3, 3, 3], [4]], [[2], [1, 2], [6, 6]]
    sequences, masks = [], []
    for prompt, *answers in zip(prompts, chosen, rejected, strict=True):
        for answer in answers:
            sequences.append(prompt + answer)
            masks.append([0] * len(prompt) + [1] * len(answer))
    datasets = MemoryDatasets({"pairs": sequences}, max_seq_len=12, group_size=2)
    dataset = PackedDataset(datasets, "pairs", sequences, batch_size=1, rank=(0, 1), batch=BatchFormat(loss_mask=masks))
    random = torch.Generator().manual_seed(0)
    table = torch.randn(16, 16, generator=random)
    found = {}
    for batch in map(as_pair_batch, dataset):
        log_probs = pair_log_probs(batch, table[batch["input_ids"]])
        found |= dict(
            zip(batch["pair_ids"][::2].tolist(), zip(*map(torch.Tensor.tolist, log_probs), strict=True), strict=True)
        )
    expected = {}
    for batch in pack_pairs(prompts, chosen, rejected, max_seq_len=12, pad_token_id=0):
        log_probs = pair_log_probs(batch, table[batch["input_ids"]])
        for pair, *values in zip(batch["pair_ids"][::2].tolist(), *map(torch.Tensor.tolist, log_probs), strict=True):
            expected[pair] = tuple(values)
    assert found.keys() == expected.keys()
    for pair, values in expected.items():
        assert found[pair] == pytest.approx(values)


def test_pairs_of_shifted_batches_have_the_same_log_probs():
    sequences, masks = [[5, 6, 1], [5, 6, 2, 3]], [[0, 0, 1], [0, 0, 1, 1]]
    datasets = MemoryDatasets({"pairs": sequences}, max_seq_len=8, group_size=2)
    table = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    found = []
    for shift in (False, True):
        form = BatchFormat(loss_mask=masks, shift_labels=shift)
        batch = as_pair_batch(next(iter(PackedDataset(datasets, "pairs", sequences, batch_size=1, batch=form))))
        assert batch["shift_labels"] is shift
        found.append([*pair_log_probs(batch, table[batch["input_ids"]])])
        with pytest.raises(ValueError, match=f"shift_labels={not shift} contradicts the batch"):
            as_pair_batch(batch, shift_labels=not shift)
    for one, other in zip(*found, strict=True):
        assert one.tolist() == pytest.approx(other.tolist())


@pytest.mark.parametrize(("lengths", "groups"), [([2, 2, 2], [0, 0, 0]), ([2, 2, 2], [0, 0, 1]), ([2] * 4, [0] * 4)])
def test_groups_that_are_no_pairs_are_refused(lengths, groups):
    with TemporaryDirectory() as folder:
        prepare(lengths=lengths, groups=groups, max_seq_len=8, output=f"{folder}/set", progress=False)
        batch = next(iter(PackedDataset(f"embedded:{folder}", "set", [[1] * n for n in lengths], batch_size=1)))
    with pytest.raises(ValueError, match="sequences in this batch, and a pair has two"):
        as_pair_batch(batch)


def test_a_group_of_four_beside_sequences_without_a_group_is_refused():
    [batch] = pack_pairs([[1]] * 3, [[2]] * 3, [[3]] * 3, max_seq_len=12, pad_token_id=0)
    batch["layout"] = replace(batch["layout"], group_ids=np.array([0, 0, 0, 0, -1, -1]))
    with pytest.raises(ValueError, match="group 0 has 4 sequences in this batch"):
        as_pair_batch(batch)
