"""Packs of rollouts whose prefixes are computed once: nothing lost, no cap passed, and the loss of plain rows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import get_preset
from packhorse.client.errors import InvalidRequestError
from packhorse.losses import LossCounts, build_loss_weights, trained_log_probs
from packhorse.parallel import context_batch
from packhorse.rollouts import (
    PackOptions,
    Rollouts,
    build_tree_block_mask,
    build_tree_mask,
    pack_rollouts,
    prefix_sharing,
    to_trl_async,
)
from packhorse.topology import ContextRule


def answered(prompts, answers, prompt, mean, seed=0):
    """Queries, each with several responses, as a sampler gives them."""
    random = np.random.default_rng(seed)
    queries, responses = [], []
    for _ in range(prompts):
        query = random.integers(0, 1000, prompt).tolist()
        for _ in range(answers):
            queries.append(query)
            responses.append(random.integers(0, 1000, int(random.integers(1, 2 * mean))).tolist())
    return queries, responses


def paths_of(batch):
    """The rows' leaves, each as its tokens from the root."""
    keys = ("input_ids", "subtree_ends", "attention_mask")
    rows = zip(*(batch[key].tolist() for key in keys), strict=True)
    return [
        [tokens[key] for key in range(at + 1) if ends[key] > at]
        for tokens, ends, is_token in rows
        for at in range(sum(is_token))
        if ends[at] == at + 1
    ]


def check(batches, rollouts, max_seq_len, most_trained=None):
    """Every rollout is in one batch, and its tokens, values and trained tokens are there."""
    ids = torch.cat([batch["ids"] for batch in batches]).tolist()
    assert sorted(ids) == list(range(len(rollouts.queries)))
    for batch in batches:
        tokens, labels = batch["input_ids"].flatten(), batch["labels"].flatten()
        leaves = paths_of(batch)
        positions = batch["position_ids"].flatten()
        assert (batch["sequence_index"].diff() >= 0).all()
        for at, index in enumerate(batch["ids"].tolist()):
            query, response = list(rollouts.queries[index]), list(rollouts.responses[index])
            assert [*query, *response] in leaves
            assert batch["lengths"][at] == len(query) + len(response)
            is_tool = [False] * len(response) if rollouts.tool_masks is None else rollouts.tool_masks[index]
            wanted = [token for token, tool in zip(response, is_tool, strict=True) if not tool]
            of_sequence = batch["token_index"][batch["sequence_index"] == at]
            assert labels[of_sequence].tolist() == wanted
            before = [len(query) + n - 1 for n, tool in enumerate(is_tool) if not tool]
            assert positions[of_sequence].tolist() == before
            if rollouts.advantages is not None:
                values = batch["advantages"][batch["sequence_index"] == at]
                assert values.tolist() == [np.float32(rollouts.advantages[index])] * len(wanted)
        labelled = torch.zeros(len(tokens), dtype=torch.bool)
        labelled[batch["token_index"]] = True
        assert (labels[~labelled] == -100).all()
        assert batch["attention_mask"].sum(1).max() <= max_seq_len
        if most_trained is not None:
            assert len(batch["token_index"]) <= most_trained * len(batch["input_ids"])


@st.composite
def some_rollouts(draw):
    """Rollouts of few tokens, so that prefixes coincide by chance, and equal ones occur."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    num = draw(st.integers(1, 24))
    stems = [random.integers(0, 2, random.integers(1, 9)).tolist() for _ in range(3)]
    queries = [[*stems[random.integers(3)], *random.integers(0, 2, random.integers(0, 3))] for _ in range(num)]
    responses = [random.integers(0, 2, random.integers(1, 9)).tolist() for _ in range(num)]
    return Rollouts(
        queries=queries,
        responses=responses,
        tool_masks=[(random.random(len(response)) < 0.3).tolist() for response in responses],
        advantages=random.normal(size=num).astype(np.float32).tolist(),
        group_ids=draw(st.none() | st.just(random.integers(0, 4, num))),
        policy_versions=draw(st.none() | st.just(random.integers(3, 5, num))),
    )


@given(
    rollouts=some_rollouts(),
    batch_size=st.integers(1, 3),
    flatten=st.booleans(),
    balance=st.sampled_from(["none", "micro-step", "optimizer-step"]),
    most_trained=st.none() | st.integers(8, 12),
)
@settings(max_examples=60)
def test_every_rollout_is_in_one_tree(rollouts, batch_size, flatten, balance, most_trained):
    batches = pack_rollouts(
        rollouts,
        max_seq_len=20,
        pad_token_id=9,
        world_size=2,
        batch_size=batch_size,
        flatten=flatten,
        prefixes="tree",
        max_trained_tokens=most_trained,
        packing=PackOptions(balance=balance, allow_empty=True),
    )
    assert len(batches) % 2 == 0
    if not flatten:
        assert all(batch["input_ids"].shape == (batch_size, 20) for batch in batches)
        check(batches, rollouts, 20, most_trained)
    else:
        check(batches, rollouts, 20 * batch_size)
    if rollouts.policy_versions is not None:
        for batch in batches:
            assert batch["policy_versions"].tolist() == rollouts.policy_versions[batch["ids"].numpy()].tolist()
            packs = batch["pack_policy_versions"]
            assert len(packs) == batch_size
            assert set(packs[packs >= 0].tolist()) == set(batch["policy_versions"].tolist())


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:  # theirs computes in float32, whatever the weights are
        layer.input_layernorm = torch.nn.RMSNorm(16, eps=1e-6)
        layer.post_attention_layernorm = torch.nn.RMSNorm(16, eps=1e-6)
    model.model.norm = torch.nn.RMSNorm(16, eps=1e-6)
    return model.double()


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("reduction", ["token", "sequence", "sample"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_step_of_grpo_has_the_loss_and_gradients_of_plain_rows(llama, reduction, batch_size):
    """The clipped ratio's loss, in float64, in trees and in repeated prefixes: the same to 1e-10."""
    random = np.random.default_rng(5)
    stems = [random.integers(0, 32, 12).tolist() for _ in range(4)]
    queries = [stems[index % 4] for index in range(16)]
    responses = [random.integers(0, 3, random.integers(1, 8)).tolist() for _ in range(16)]
    rollouts = Rollouts(
        queries=queries,
        responses=responses,
        advantages=random.normal(size=16).tolist(),
        logprobs=[(-3 - random.random(len(response))).tolist() for response in responses],
        tool_masks=[[False, *(random.random(len(response) - 1) < 0.2).tolist()] for response in responses],
    )
    options = {"max_seq_len": 40, "pad_token_id": 0, "batch_size": batch_size}

    def step(batches, of_trained):
        counts = sum(LossCounts.of_batch(batch) for batch in batches)
        losses = []
        for batch in batches:
            taken, old, advantages, weights = of_trained(batch, build_loss_weights(batch, reduction, counts=counts))
            ratio = (taken - old.double()).exp()
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            losses.append(-(weights * surrogate).sum())
        return sum(losses)

    def in_trees(batch, weights):
        logits = llama(
            batch["input_ids"], position_ids=batch["position_ids"], attention_mask=build_tree_mask(batch)
        ).logits
        return trained_log_probs(batch, logits), batch["logprobs"], batch["advantages"], weights

    def in_rows(batch, weights):
        logits = llama(
            batch["input_ids"], position_ids=batch["position_ids"], attention_mask=None, use_cache=False
        ).logits
        labels = batch["labels"]
        taken = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        keep = labels != -100
        return taken[keep], batch["logprobs"][keep], batch["advantages"][keep], weights[keep]

    trees = pack_rollouts(rollouts, prefixes="tree", **options)
    plain = pack_rollouts(rollouts, shift_labels=True, **options)
    together, apart = step(trees, in_trees), step(plain, in_rows)
    assert abs(together.item() - apart.item()) < 1e-10
    for one, other in zip(gradients(llama, together), gradients(llama, apart), strict=True):
        assert (one - other).abs().max() < 1e-10
    sharing = prefix_sharing(trees)
    assert sharing.num_tokens == sum(map(len, queries)) + sum(map(len, responses))
    assert sharing.num_distinct_tokens < 0.75 * sharing.num_tokens


def test_a_micro_batch_is_what_trl_s_collator_makes():
    packing = pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)
    from trl.experimental.async_grpo import async_grpo_trainer as trainer

    collators = [
        each for each in vars(trainer).values() if hasattr(each, "torch_call") and each.__module__ == trainer.__name__
    ]
    queries, responses = answered(6, 4, 10, 6)
    random = np.random.default_rng(0)
    logprobs = [random.normal(size=len(response)).astype(np.float32).tolist() for response in responses]
    advantages = random.normal(size=24).astype(np.float32).tolist()
    rollouts = Rollouts(queries=queries, responses=responses, logprobs=logprobs, advantages=advantages)
    batches = pack_rollouts(rollouts, max_seq_len=80, pad_token_id=5, world_size=2, prefixes="tree", flatten=True)
    for first in range(0, len(batches), 2):
        rows = []
        for batch in batches[first : first + 2]:
            row = packing.TreeRow()
            for index in batch["ids"].tolist():
                query, response = queries[index], responses[index]
                row.add(
                    {
                        "input_ids": torch.tensor([*query, *response]),
                        "completion_mask": torch.tensor([0] * len(query) + [1] * len(response)),
                        "old_log_probs": torch.tensor([0.0] * len(query) + logprobs[index]),
                        "advantage": advantages[index],
                        "group_id": index // 4,
                        "reward": 0.0,
                    }
                )
            rows.append(row)
        [collator] = collators
        expected = collator(pad_token_id=5, num_processes=2)
        expected._log_metrics = lambda **_: None
        expected = expected.torch_call([rows])
        ours = to_trl_async(batches[first : first + 2], pad_token_id=5)
        assert set(ours) == set(expected) - {"mean_seq_len"}
        for name, values in ours.items():
            assert (values.dtype, values.tolist()) == (expected[name].dtype, expected[name].tolist()), name
    with pytest.raises(ValueError, match="flatten=True"):
        to_trl_async(pack_rollouts(rollouts, max_seq_len=80, pad_token_id=5, prefixes="tree"), pad_token_id=5)


@pytest.mark.parametrize("flatten", [False, True])
def test_all_three_forms_of_attention_agree(flatten):
    """The dense mask, FlexAttention's, and keys gathered for variable-length kernels."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    queries, responses = answered(3, 4, 10, 6)
    batches = pack_rollouts(
        Rollouts(queries=queries, responses=responses),
        max_seq_len=64,
        pad_token_id=0,
        batch_size=2,
        prefixes="tree",
        flatten=flatten,
        packing=PackOptions(allow_empty=True),
    )
    for batch in batches:
        num_rows, length = batch["input_ids"].shape
        query, key, value = torch.randn(3, num_rows, 1, length, 16, generator=torch.Generator().manual_seed(0))
        dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=build_tree_mask(batch))
        blocks = flex.flex_attention(query, key, value, block_mask=build_tree_block_mask(batch))
        torch.testing.assert_close(blocks, dense)
        flat = [part.reshape(-1, 16) for part in (query, key, value)]
        parts = []
        bounds = list(zip(batch["tree_cu_seqlens_q"].tolist(), batch["tree_cu_seqlens_k"].tolist(), strict=True))
        for (first, first_key), (end, end_key) in pairwise(bounds):
            at = batch["tree_kv_index"][first_key:end_key]
            causal = torch.ones(end - first, len(at), dtype=torch.bool).tril(len(at) - end + first)
            parts.append(
                torch.nn.functional.scaled_dot_product_attention(
                    flat[0][None, first:end], flat[1][None, at], flat[2][None, at], attn_mask=causal
                )[0]
            )
        torch.testing.assert_close(torch.cat(parts), dense.reshape(-1, 16))
        longest = [max(b[n] - a[n] for a, b in pairwise(bounds)) for n in range(2)]
        assert batch["tree_max_seqlens"] == tuple(longest)


def test_a_window_counts_along_each_sequence():
    queries, responses = answered(2, 3, 10, 6)
    [batch] = pack_rollouts(
        Rollouts(queries=queries, responses=responses), max_seq_len=128, pad_token_id=0, prefixes="tree"
    )
    whole, near = build_tree_mask(batch)[0, 0], build_tree_mask(batch, window=4)[0, 0]
    depths = batch["position_ids"][0]
    assert torch.equal(near, whole & (depths[:, None] - depths[None] < 4))
    assert near.sum(1).max() == 4
    blocks = build_tree_block_mask(batch, window=4)
    at = torch.arange(128)
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None]), near)
    with pytest.raises(ValueError, match="window must be at least 1"):
        build_tree_mask(batch, window=0)


@pytest.mark.parametrize("balance", ["micro-step", "optimizer-step"])
@pytest.mark.parametrize(
    ("shape", "max_seq_len", "world_size"),
    [
        ((64, 8, 51, 85), 1638, 16),
        ((64, 8, 205, 85), 1638, 16),
        ((32, 8, 1200, 85), 3276, 16),
        ((5, 8, 400, 50), 2000, 16),
    ],
)
def test_no_rank_takes_more_than_1_2_times_the_mean(shape, max_seq_len, world_size, balance):
    queries, responses = answered(*shape)
    batches = pack_rollouts(
        Rollouts(queries=queries, responses=responses),
        max_seq_len=max_seq_len,
        pad_token_id=0,
        world_size=world_size,
        prefixes="tree",
        packing=PackOptions(balance=balance, cost_linear=2000),
        flatten=True,
    )
    costs = np.array([int((2 * batch["position_ids"] + 2001).sum()) for batch in batches]).reshape(-1, world_size)
    slowest = costs.max(axis=1).sum() if balance == "micro-step" else costs.sum(axis=0).max()
    assert slowest <= 1.2 * costs.sum() / world_size
    assert all(len(batch["ids"]) for batch in batches)


def test_turns_of_a_conversation_are_one_path():
    """Each sample is a turn whose query is all that came before; a re-templated turn forks where it changed."""
    first, tool, second, third = [1, 2, 3], [7, 7], [4, 5, 6, 9], [8, 8]
    queries = [first, [*first, 10, 11, *tool], [*first, 10, 11, *tool, *second, *tool]]
    responses = [[10, 11], second, third]
    rollouts = Rollouts(queries=queries, responses=responses)
    [batch] = pack_rollouts(rollouts, max_seq_len=64, pad_token_id=0, prefixes="tree")
    sharing = prefix_sharing([batch])
    longest = len(queries[2]) + 2
    assert (sharing.num_sequences, sharing.num_distinct_tokens) == (3, longest + 2)  # each end is a node of its own
    assert sharing.num_forks == 2
    queries[2][3] = 12  # re-templated
    [batch] = pack_rollouts(
        Rollouts(queries=queries, responses=responses), max_seq_len=64, pad_token_id=0, prefixes="tree"
    )
    check([batch], rollouts := Rollouts(queries=queries, responses=responses), 64)
    assert prefix_sharing([batch]).num_distinct_tokens > longest + 2
    assert len(rollouts.queries) == 3


def test_a_group_larger_than_a_bin_is_halved_where_little_is_shared():
    prompt = list(range(100))
    queries = [[*prompt, *[200 + index // 4] * 50] for index in range(8)]  # two branches of four
    responses = [[300 + index] * 10 for index in range(8)]
    rollouts = Rollouts(queries=queries, responses=responses, group_ids=[0] * 8)
    batches = pack_rollouts(rollouts, max_seq_len=220, pad_token_id=0, prefixes="tree")
    assert sorted(sorted(batch["ids"].tolist()) for batch in batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_two_caps_and_the_limit_of_rollouts_hold():
    queries, responses = answered(4, 8, 50, 20)
    rollouts = Rollouts(queries=queries, responses=responses)
    options = {"max_seq_len": 400, "pad_token_id": 0, "prefixes": "tree"}
    batches = pack_rollouts(rollouts, max_trained_tokens=90, **options)
    check(batches, rollouts, 400, most_trained=90)
    batches = pack_rollouts(rollouts, packing=PackOptions(max_sequences_per_bin=3), **options)
    assert max(len(batch["ids"]) for batch in batches) == 3
    tiles = np.arange(32) % 5
    batches = pack_rollouts(rollouts, resources={"tiles": (tiles, 9)}, **options)
    assert max(int(tiles[batch["ids"]].sum()) for batch in batches) <= 9
    check(batches, rollouts, 400)


def test_what_goes_wrong_is_named():
    rollouts = Rollouts(queries=[[1, 2], [1]], responses=[[3], [4, 5, 6]])
    options = {"max_seq_len": 8, "pad_token_id": 0}
    with pytest.raises(ValueError, match="rollout 1 takes 3 trained tokens, over the cap of 2"):
        pack_rollouts(rollouts, prefixes="tree", max_trained_tokens=2, **options)
    with pytest.raises(ValueError, match="rollout 0 takes 5 tiles, over the cap of 4"):
        pack_rollouts(rollouts, prefixes="tree", resources={"tiles": ([5, 0], 4)}, **options)
    with pytest.raises(ValueError, match="must have one integer for each of 2 rollouts"):
        pack_rollouts(rollouts, prefixes="tree", resources={"tiles": ([5], 4)}, **options)
    limit = PackOptions(max_sequences_per_bin=2)
    with pytest.raises(ValueError, match="is the name of another cap here"):
        pack_rollouts(rollouts, prefixes="tree", packing=limit, resources={"rollouts": ([1, 1], 9)}, **options)
    with pytest.raises(ValueError, match="must be a dict of name to"):
        pack_rollouts(rollouts, prefixes="tree", resources={"tiles": 3}, **options)
    with pytest.raises(ValueError, match="max_trained_tokens limits trees"):
        pack_rollouts(rollouts, max_trained_tokens=2, **options)
    with pytest.raises(ValueError, match="leave out shift_labels"):
        pack_rollouts(rollouts, prefixes="tree", shift_labels=False, **options)
    with pytest.raises(ValueError, match="'repeated' or 'tree'"):
        pack_rollouts(rollouts, prefixes="once", **options)
    with pytest.raises(InvalidRequestError, match="packs make a step"):
        pack_rollouts(rollouts, prefixes="tree", world_size=3, **options)


def test_a_token_trained_in_one_rollout_and_given_in_another_is_trained_in_the_one():
    """A turn's text is trained where it was written, and read in later turns' queries."""
    rollouts = Rollouts(queries=[[1, 2], [1, 2, 3, 4]], responses=[[3, 4], [5]], advantages=[1.0, 2.0])
    [batch] = pack_rollouts(rollouts, max_seq_len=8, pad_token_id=0, prefixes="tree")
    assert batch["sequence_index"].tolist() == [0, 0, 1]
    assert batch["advantages"].tolist() == [1.0, 1.0, 2.0]
    check([batch], rollouts, 8)


@pytest.mark.parametrize("preset", ["rows", "padding-free", "trl", "megatron", "torchtune"])
def test_what_cannot_take_a_tree_says_so(preset):
    [batch] = pack_rollouts(Rollouts(queries=[[1]], responses=[[2]]), max_seq_len=8, pad_token_id=0, prefixes="tree")
    with pytest.raises(KeyError, match="pack with prefixes='repeated'"):
        get_preset(preset).convert(batch)
    with pytest.raises(ValueError, match="and prefixes='repeated'"):
        context_batch(batch, ContextRule(4, 2), 0)
    with pytest.raises(KeyError, match="did you mean 'labels'"):
        batch["label"]


def test_a_batch_survives_a_file_and_another_device(tmp_path):
    queries, responses = answered(2, 3, 5, 4)
    rollouts = Rollouts(queries=queries, responses=responses, rewards=list(range(6)), policy_versions=[1] * 6)
    [batch] = pack_rollouts(rollouts, max_seq_len=128, pad_token_id=0, prefixes="tree")
    assert batch["rewards"].tolist() == [float(index) for index in batch["ids"]]
    torch.save(batch, tmp_path / "batch.pt")
    for other in (torch.load(tmp_path / "batch.pt", weights_only=True), batch.to("cpu")):
        assert list(other) == list(batch)
        assert torch.equal(other["input_ids"], batch["input_ids"])
        assert other["num_forks"] == batch["num_forks"]
    assert batch.to("meta")["tree_kv_index"].device.type == "meta"
    assert "TreeBatch" in repr(batch)
