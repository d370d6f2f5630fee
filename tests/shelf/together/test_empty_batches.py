"""A last step with fewer sequences than rows: ranks with an empty batch add nothing to a mean, and no NaN."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from packhorse.client import BatchAssembler, BinBlock, get_preset, list_presets
from packhorse.client.masks import build_packing_attention_bias
from packhorse.client.sources import IndexableSource
from packhorse.losses import LossCounts, build_loss_weights
from packhorse.rollouts import PackOptions, Rollouts, pack_rollouts

BINS = [[0, 1], [2], [], []]
"""Sequences of each rank's row in the step."""
SEQUENCES = [[5, 8, 1, 7], [9, 4, 4, 2, 6, 11], [3, 12, 10]]
OF_PADDING_FREE = ["open-instruct", "padding-free", "trl"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def batches_of_ranks(*, flatten, shift_labels=False):
    assembler = BatchAssembler(12, flatten=flatten, shift_labels=shift_labels)
    batches = []
    for members in BINS:
        block = BinBlock(
            ids=np.array(members, dtype=np.int64),
            lengths=np.array([len(SEQUENCES[i]) for i in members], dtype=np.int32),
            bin_ends=np.array([len(members)]),
            positions=np.array([0]),
        )
        batches.append(assembler.assemble(block, IndexableSource([np.array(s) for s in SEQUENCES])))
    return batches


def with_gradient(model, losses):
    """Sum of losses, and its gradient."""
    model.zero_grad()
    total = sum(losses)
    total.backward()
    return total.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def alone(model):
    """The token mean, each sequence by itself."""
    num_targets = sum(len(sequence) - 1 for sequence in SEQUENCES)
    losses = []
    for sequence in SEQUENCES:
        tokens = torch.tensor([sequence])
        losses.append(cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:], reduction="sum") / num_targets)
    return with_gradient(model, losses)


def logits_of(model, batch):
    if len(batch["input_ids"]) == 1 and batch["layout"].row_tokens != 12:  # flattened
        keys = get_preset("padding-free").convert(batch)
        del keys["labels"]
        return model(**keys, use_cache=False).logits
    bias = build_packing_attention_bias(batch, torch.float32, "cpu", causal=True)
    return model(batch["input_ids"], attention_mask=bias, position_ids=batch["position_ids"], use_cache=False).logits


@pytest.mark.parametrize("flatten", [False, True])
def test_weights_make_the_loss_of_an_empty_batch_0(model, flatten):
    batches = batches_of_ranks(flatten=flatten)
    counts = sum(LossCounts.of_batch(batch) for batch in batches)

    def loss_of(batch):
        losses = cross_entropy(
            logits_of(model, batch)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none"
        )
        return (build_loss_weights(batch, counts=counts)[:, 1:].flatten() * losses).sum()

    loss, gradient = with_gradient(model, [loss_of(batches[-1])])
    assert loss == 0
    assert (gradient == 0).all()
    for found, expected in zip(with_gradient(model, map(loss_of, batches)), alone(model), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("preset", OF_PADDING_FREE)
def test_a_model_of_transformers_takes_the_number_of_targets(model, preset):
    batches = [get_preset(preset).convert(batch) for batch in batches_of_ranks(flatten=True)]
    assert model(**batches[-1], use_cache=False).loss.isnan()  # its own mean: the fault
    counts = sum(LossCounts.of_batch(batch) for batch in batches)

    def loss_of(batch):
        return model(**batch, use_cache=False, num_items_in_batch=counts.num_targets).loss

    assert loss_of(batches[-1]) == 0
    for found, expected in zip(with_gradient(model, map(loss_of, batches)), alone(model), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["token", "sequence"])
@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_batches_of_presets_are_counted_or_refused_with_the_call_that_works(preset, reduction):
    batches = batches_of_ranks(flatten=preset.flatten, shift_labels=preset.shift_labels)
    counts = sum(LossCounts.of_batch(batch) for batch in batches)
    for batch in batches:
        converted = preset.convert(batch)
        if preset.name not in OF_PADDING_FREE:
            for use in (LossCounts.of_batch, build_loss_weights):
                with pytest.raises(ValueError, match=r"before the preset, with LossCounts\.of_batch"):
                    use(converted)
            continue
        own = LossCounts.of_batch(converted)
        assert (own.num_targets, own.num_sequences) == (
            LossCounts.of_batch(batch).num_targets,
            LossCounts.of_batch(batch).num_sequences,
        )
        expected = build_loss_weights(batch, reduction, counts=counts)
        assert torch.equal(build_loss_weights(converted, reduction, counts=counts), expected)


@pytest.mark.parametrize("reduction", ["token", "sequence", "sample"])
@pytest.mark.parametrize("flatten", [False, True])
def test_empty_packs_of_rollouts_weigh_nothing(model, reduction, flatten):
    def mean(**options):
        batches = pack_rollouts(
            Rollouts(queries=[[1, 2], [1, 2], [3]], responses=[[7, 5], [8, 9, 4], [6]]),
            max_seq_len=12,
            pad_token_id=0,
            shift_labels=True,
            flatten=flatten,
            **options,
        )
        counts = sum(LossCounts.of_batch(batch) for batch in batches)
        losses = []
        for batch in batches:
            weights = build_loss_weights(batch, reduction, counts=counts)
            if not len(batch["ids"]):
                assert (weights == 0).all()
            bias = build_packing_attention_bias(batch, torch.float32, "cpu", causal=True)
            logits = model(batch["input_ids"], attention_mask=bias, position_ids=batch["position_ids"]).logits
            of_tokens = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
            losses.append((weights.flatten() * of_tokens).sum())
        return len(batches), with_gradient(model, losses)

    (few, expected), (many, found) = mean(), mean(world_size=4, batch_size=2, packing=PackOptions(allow_empty=True))
    assert (few, many) == (1, 4)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
