"""Batches of prepared groups folded to trees: the same sequences, losses and cursors as without."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from packhorse.client import BatchAssembler, BatchFormat, MemoryDatasets, PackedBins, PackedDataset, get_preset
from packhorse.client.sources import IndexableSource
from packhorse.losses import LossCounts, build_loss_weights, sequence_log_probs, trained_log_probs
from packhorse.rollouts import TreeBatch, build_tree_mask, pack_pairs, pair_log_probs, prefix_sharing
from packhorse.topology import ContextRule

VOCABULARY = 32


@pytest.fixture(scope="module")
def pairs():
    """Twelve pairs, chosen and rejected, each with its prompt in front; some answers begin alike."""
    random = np.random.default_rng(2)
    sequences = []
    for _ in range(12):
        prompt = random.integers(1, VOCABULARY, random.integers(2, 9)).tolist()
        sequences += [[*prompt, *random.integers(1, 4, random.integers(1, 7)).tolist()] for _ in range(2)]
    return sequences


@pytest.fixture(scope="module")
def loss_mask(pairs):
    return [[int(at >= 2) for at in range(len(sequence))] for sequence in pairs]


@pytest.fixture
def dataset(pairs, loss_mask):
    """Function: a PackedDataset of the pairs with some form."""

    def make(batch_size=2, **form):
        datasets = MemoryDatasets({"pairs": pairs}, max_seq_len=40, group_size=2)
        options = BatchFormat(loss_mask=loss_mask, **form)
        return PackedDataset(datasets, "pairs", pairs, batch_size=batch_size, rank=(0, 1), batch=options)

    return make


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config).double()


def alone(model, sequence, mask):
    """Log-probabilities of a sequence's trained tokens, by itself."""
    logits = model(torch.tensor([sequence]), use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logits[at - 1, sequence[at]] for at in range(1, len(sequence)) if mask[at]])


@pytest.mark.parametrize("flatten", [False, True])
def test_losses_are_those_of_each_sequence_alone(dataset, pairs, loss_mask, llama, flatten):
    batches = list(dataset(shared_prefix="tree", flatten=flatten))
    assert sorted(torch.cat([batch["ids"] for batch in batches]).tolist()) == list(range(24))
    counts = sum(LossCounts.of_batch(batch) for batch in batches)
    assert int(counts.num_targets) == sum(sum(mask[1:]) for mask in loss_mask)
    losses = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        assert isinstance(batch, TreeBatch)
        logits = llama(
            batch["input_ids"], position_ids=batch["position_ids"], attention_mask=build_tree_mask(batch)
        ).logits
        of_sequences = [alone(llama, pairs[index], loss_mask[index]) for index in batch["ids"].tolist()]
        torch.testing.assert_close(trained_log_probs(batch, logits), torch.cat(of_sequences), rtol=0, atol=1e-6)
        sums = torch.stack([each.sum() for each in of_sequences])
        torch.testing.assert_close(sequence_log_probs(batch, logits), sums, rtol=0, atol=1e-5)
        chosen, rejected = pair_log_probs(batch, logits)
        torch.testing.assert_close(torch.stack((chosen, rejected), 1).flatten(), sums, rtol=0, atol=1e-5)
        weights = build_loss_weights(batch, "sequence", counts=counts)
        losses = losses - (weights * trained_log_probs(batch, logits)).sum()
        assert build_loss_weights(batch, "sample").sum() == pytest.approx(1)
    expected = -sum(alone(llama, pair, mask).mean() for pair, mask in zip(pairs, loss_mask, strict=True)) / 24
    assert losses.item() == pytest.approx(expected.item(), abs=1e-6)
    sharing = prefix_sharing(batches)
    assert sharing.num_tokens == sum(map(len, pairs))
    assert sharing.num_distinct_tokens < 0.85 * sharing.num_tokens


def test_cursors_and_workers_are_as_without_trees(dataset):
    plain, trees = dataset(), dataset(shared_prefix="tree")
    cursors = [(batch["ids"].tolist(), batch["cursor"]) for batch in plain]
    assert [(batch["ids"].tolist(), batch["cursor"]) for batch in trees] == cursors
    resumed = dataset(shared_prefix="tree", batch_size=1)
    resumed.load_state_dict(cursors[0][1])
    rest = [index for batch in resumed for index in batch["ids"].tolist()]
    assert sorted(rest) == sorted(index for ids, _ in cursors[1:] for index in ids)
    sent = pickle.loads(pickle.dumps(dataset(shared_prefix="tree")))  # as to a worker that is spawned
    in_worker = list(DataLoader(sent, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    assert all(isinstance(batch, TreeBatch) for batch in in_worker)
    assert [batch["ids"].tolist() for batch in in_worker] == [ids for ids, _ in cursors]


@pytest.mark.parametrize("flatten", [False, True])
def test_pairs_on_demand_take_the_room_of_their_distinct_tokens(llama, flatten):
    random = np.random.default_rng(3)
    prompts = [random.integers(1, VOCABULARY, random.integers(5, 12)).tolist() for _ in range(20)]
    answers = [[random.integers(1, 4, random.integers(1, 5)).tolist() for _ in range(20)] for _ in range(2)]
    options = {"max_seq_len": 26, "pad_token_id": 0, "world_size": 2, "batch_size": 2}
    trees = pack_pairs(prompts, *answers, prefixes="tree", flatten=flatten, **options)
    plain = pack_pairs(prompts, *answers, **(options | {"max_seq_len": 40}))
    found = {}
    for batches, of_mask in ((trees, build_tree_mask), (plain, lambda _: None)):
        for batch in batches:
            inputs = {"position_ids": batch["position_ids"], "attention_mask": of_mask(batch), "use_cache": False}
            log_probs = pair_log_probs(batch, llama(batch["input_ids"], **inputs).logits)
            assert batch["is_chosen"].tolist() == [True, False] * (len(batch["ids"]) // 2)
            for pair, *both in zip(batch["pair_ids"][::2].tolist(), *log_probs, strict=True):
                found.setdefault(pair, []).append(torch.stack(both))
    assert sorted(found) == list(range(20))
    for in_tree, alone in found.values():
        torch.testing.assert_close(in_tree, alone, rtol=0, atol=1e-5)
    assert len(trees) % 2 == 0
    assert max(int(batch["attention_mask"].sum(1).max()) for batch in trees) <= (52 if flatten else 26)
    assert prefix_sharing(trees).num_distinct_tokens < 0.8 * prefix_sharing(trees).num_tokens
    with pytest.raises(ValueError, match=r"pair 0 takes .* of which"):
        pack_pairs(prompts, *answers, prefixes="tree", **(options | {"max_seq_len": 6}))


def test_the_preset_has_the_rows_of_trl(dataset, pairs, loss_mask):
    packing = pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)
    plain = list(dataset(batch_size=3))
    for batch, own in zip(dataset(batch_size=3, preset="trl_async"), plain, strict=True):
        ids = np.split(own["ids"].numpy(), own["layout"].row_ends[:-1])
        assert batch["input_ids"].shape[0] == 3
        for number, members in enumerate(ids):
            row = packing.TreeRow()
            for index in members.tolist():
                mask = torch.tensor(loss_mask[index])
                sample = {"input_ids": torch.tensor(pairs[index]), "completion_mask": mask, "group_id": 0}
                row.add(sample | {"old_log_probs": torch.zeros(len(mask)), "advantage": 0.0})
            expected = row.pack()
            for name, values in expected.items():
                if name in ("old_log_probs", "advantages"):
                    assert name not in batch
                    continue
                ours = batch[name][number]
                assert ours[: len(values)].tolist() == values.tolist(), name
                padding = {"shift_labels": -100, "token_index": -1}.get(name, -1 if name.startswith("tree_") else 0)
                assert (ours[len(values) :] == padding).all(), name
            assert batch["attention_mask"][number].sum() == len(expected["input_ids"])


def test_what_does_not_go_with_trees_is_refused(dataset):
    with pytest.raises(ValueError, match="take preset 'trl_async'"):
        BatchFormat(shared_prefix="tree", preset="rows")
    with pytest.raises(ValueError, match="leave out shift_labels"):
        BatchFormat(shared_prefix="tree", shift_labels=False)
    with pytest.raises(ValueError, match="goes without continue_positions"):
        BatchFormat(shared_prefix="tree", continue_positions=True)
    with pytest.raises(ValueError, match="must be True, False or 'tree'"):
        BatchFormat(shared_prefix="trees")
    for options in ({"batch": BatchFormat(shared_prefix="tree")}, {"preset": "trl_async"}):
        with pytest.raises(ValueError, match="trees cannot be used with PackedBins"):
            PackedBins(MemoryDatasets({"pairs": [[1, 2], [1, 3]]}, max_seq_len=8), "pairs", [[1, 2], [1, 3]], **options)
    with pytest.raises(ValueError, match="goes without tokens_per_rank"):
        BatchAssembler(8, shared_prefix="tree", context_rule=ContextRule(4, 2))
    batch = next(iter(dataset(shared_prefix="tree")))
    with pytest.raises(KeyError, match="pack with prefixes='repeated'"):
        get_preset("megatron").convert(batch)


def test_an_empty_bin_is_a_row_of_padding(pairs):
    from packhorse.client import BinBlock

    assembler = BatchAssembler(12, shared_prefix="tree", pad_token_id=3)
    lengths = np.array([len(pairs[0])], dtype=np.int32)
    block = BinBlock(ids=np.array([0]), lengths=lengths, bin_ends=np.array([0, 1]), positions=np.array([0, 1]))
    batch = assembler.assemble(block, IndexableSource(pairs))
    assert batch["input_ids"][0].tolist() == [3] * 12
    assert batch["input_ids"][1, : lengths[0]].tolist() == pairs[0]
    assert batch["labels"][0].tolist() == [-100] * 12
