"""Rollouts in packed batches: every field against a token-by-token oracle, and the bins on every way to them."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import Balance
from packhorse.client.errors import InvalidRequestError
from packhorse.client.masks import build_boolean_mask, build_labelled_mask
from packhorse.losses import LossCounts, build_loss_weights
from packhorse.rollouts import PackOptions, Rollouts, pack_rollouts

PAD, IGNORED = 3, -100
ABOUT_TOKENS = {
    "labels": (torch.int64, IGNORED),
    "response_mask": (torch.bool, False),
    "tool_mask": (torch.bool, False),
    "dones": (torch.bool, False),
    "advantages": (torch.float32, 0.0),
    "logprobs": (torch.float32, 0.0),
    "rewards": (torch.float32, 0.0),
}
"""Fields that tell of the token at their index or, shifted, of the next; with their types and what stands elsewhere."""


def told(rollouts, index, rewards, dones):
    """Oracle: what is told of each token of one rollout, name → list."""
    query, response = rollouts.queries[index], rollouts.responses[index]
    fields = {name: [nothing] * (len(query) + len(response)) for name, (_, nothing) in ABOUT_TOKENS.items()}
    for number, token in enumerate(response):
        at = len(query) + number
        fields["response_mask"][at] = True
        if rollouts.tool_masks[index][number]:
            fields["tool_mask"][at] = True
            continue
        fields["labels"][at] = token
        fields["advantages"][at] = rollouts.advantages[index]
        fields["logprobs"][at] = rollouts.logprobs[index][number]
    fields["dones"][-1] = dones[index]
    fields["rewards"][-1] = rewards[index]
    return fields


def check(batches, rollouts, rewards, dones, *, row_tokens, shift):
    """Compares every token of every batch with the oracle."""
    for batch in batches:
        rows = np.split(batch["ids"].numpy(), batch["layout"].row_ends[:-1])
        for row, members in enumerate(rows):
            expected = {
                name: [] for name in ["input_ids", "sequence_ids", "position_ids", "attention_mask", *ABOUT_TOKENS]
            }
            for label, index in enumerate(members.tolist()):
                tokens = rollouts.queries[index] + rollouts.responses[index]
                expected["input_ids"] += tokens
                expected["sequence_ids"] += [label] * len(tokens)
                expected["position_ids"] += range(len(tokens))
                expected["attention_mask"] += [1] * len(tokens)
                for name, values in told(rollouts, index, rewards, dones).items():
                    expected[name] += values
            free = (row_tokens or len(expected["input_ids"])) - len(expected["input_ids"])
            expected["input_ids"] += [PAD] * free
            expected["sequence_ids"] += [len(members)] * free
            expected["position_ids"] += range(free)
            expected["attention_mask"] += [0] * free
            for name, (dtype, nothing) in ABOUT_TOKENS.items():
                expected[name] += [nothing] * free
                if shift:
                    expected[name] = [*expected[name][1:], nothing]
                assert batch[name].dtype == dtype
            for name, values in expected.items():
                assert torch.equal(batch[name][row], torch.tensor(values, dtype=batch[name].dtype)), name


@given(
    num_rollouts=st.integers(24, 48),  # enough for any multiple of bins asked for below
    seed=st.integers(0, 2**32),
    shift=st.booleans(),
    flat=st.booleans(),
    batch_size=st.integers(1, 2),
    world_size=st.integers(1, 4),
)
@settings(max_examples=50)
def test_every_token_is_where_the_oracle_puts_it(some, num_rollouts, seed, shift, flat, batch_size, world_size):
    rollouts = some(num_rollouts, seed)
    random = np.random.default_rng(seed)
    rewards, dones = random.normal(size=num_rollouts).tolist(), (random.random(num_rollouts) < 0.5).tolist()
    batches = pack_rollouts(
        Rollouts(
            queries=rollouts.queries, responses=rollouts.responses, **rollouts.options(), rewards=rewards, dones=dones
        ),
        max_seq_len=64,
        pad_token_id=PAD,
        shift_labels=shift,
        flatten=flat,
        batch_size=batch_size,
        world_size=world_size,
    )
    assert len(batches) % world_size == 0
    assert sorted(np.concatenate([batch["ids"] for batch in batches]).tolist()) == list(range(num_rollouts))
    for batch in batches:
        assert batch["shift_labels"] is shift
        assert len(batch["input_ids"]) == (1 if flat else batch_size)
        assert (np.diff(batch["layout"].row_ends, prepend=0) > 0).all()
        lengths = [len(rollouts.queries[i]) + len(rollouts.responses[i]) for i in batch["ids"].tolist()]
        assert batch["cu_seqlens"].tolist() == np.cumsum([0, *lengths]).tolist()
        assert batch["max_seqlen"] == max(lengths)
    check(batches, rollouts, rewards, dones, row_tokens=None if flat else 64, shift=shift)


@pytest.mark.parametrize("form", [np.array, torch.tensor, list])
def test_lists_arrays_and_tensors_are_the_same(some, form):
    rollouts = some(12)
    plain = pack_rollouts(
        Rollouts(queries=rollouts.queries, responses=rollouts.responses, **rollouts.options()),
        max_seq_len=64,
        pad_token_id=PAD,
    )
    other = pack_rollouts(
        Rollouts(
            queries=[form(row) for row in rollouts.queries],
            responses=[form(row) for row in rollouts.responses],
            tool_masks=[form(row) for row in rollouts.tool_masks],
            advantages=form(rollouts.advantages),
            logprobs=[form(row) for row in rollouts.logprobs],
        ),
        max_seq_len=64,
        pad_token_id=PAD,
    )
    for left, right in zip(plain, other, strict=True):
        for name in left.keys() - {"layout", "groups"}:
            assert torch.equal(torch.as_tensor(left[name]), torch.as_tensor(right[name])), name
        assert left["layout"] == right["layout"]


def test_one_number_a_token():
    (batch,) = pack_rollouts(
        Rollouts(
            queries=[[1, 2]],
            responses=[[5, 6, 7]],
            advantages=[[0.5, 1.5, 2.5]],
            rewards=[[1, 2, 3]],
            logprobs=[torch.tensor([-1.0, -2.0, -3.0], dtype=torch.bfloat16)],
            tool_masks=[[0, 1, 0]],
        ),
        max_seq_len=6,
        pad_token_id=0,
    )
    assert batch["advantages"].tolist() == [[0, 0, 0.5, 0, 2.5, 0]]
    assert batch["rewards"].tolist() == [[0, 0, 1, 2, 3, 0]]
    assert batch["logprobs"].tolist() == [[0, 0, -1, 0, -3, 0]]


def test_what_is_not_given_is_not_there():
    (batch,) = pack_rollouts(Rollouts(queries=[[1]], responses=[[5]]), max_seq_len=2, pad_token_id=0)
    optional = {"advantages", "logprobs", "reference_logprobs", "rewards", "policy_versions", "pack_policy_versions"}
    assert not optional & batch.keys()
    assert batch["dones"].tolist() == [[False, True]]
    assert not batch["tool_mask"].any()


def test_groups_are_numbered_over_all_batches():
    queries = [[1, 2], [7], [1, 2], [7], [9], [1, 2]]
    for group_ids, expected in ((None, [0, 1, 0, 1, 2, 0]), ([30, -2, 30, -2, 5, 1], [3, 0, 3, 0, 2, 1])):
        batches = pack_rollouts(
            Rollouts(queries=queries, responses=[[5, 5]] * 6, group_ids=group_ids),
            max_seq_len=4,
            pad_token_id=0,
            world_size=3,
            batch_size=2,
        )
        found = {}
        for batch in batches:
            assert batch["groups"].num_groups == max(expected) + 1
            found |= dict(zip(batch["ids"].tolist(), batch["groups"].numbers.tolist(), strict=True))
        assert [found[index] for index in range(6)] == expected


def test_both_ways_to_the_planner_give_the_same_bins(some, rows_of, client, monkeypatch):
    rollouts = some(200)
    options = {"max_seq_len": 64, "pad_token_id": PAD, "world_size": 8, "packing": PackOptions(max_sequences_per_bin=3)}
    here = pack_rollouts(Rollouts(queries=rollouts.queries, responses=rollouts.responses), **options)
    monkeypatch.delattr("packhorse.rollouts.steps.EmbeddedPlanner")  # a client is all that is asked
    there = pack_rollouts(Rollouts(queries=rollouts.queries, responses=rollouts.responses), **options, client=client)
    assert rows_of(here) == rows_of(there)
    lengths = [len(q) + len(r) for q, r in zip(rollouts.queries, rollouts.responses, strict=True)]
    asked = client.pack_sequences(lengths, 64, num_bins_multiple_of=8, packing=PackOptions(max_sequences_per_bin=3))
    assert rows_of(here) == [members.tolist() for members in asked]
    assert max(map(len, rows_of(here))) == 3


def test_no_loader_of_datasets_is_needed_here():
    code = """
import sys
from packhorse.rollouts import Rollouts, pack_rollouts
eight = Rollouts(queries=[[1]] * 8, responses=[[2]] * 8)
assert len(pack_rollouts(eight, max_seq_len=8, pad_token_id=0, world_size=2)) == 2
sys.modules["packhorse.server.methods.on_demand.pack"] = None
try:
    pack_rollouts(Rollouts(queries=[[1]], responses=[[2]]), max_seq_len=8, pad_token_id=0)
except Exception as error:
    assert type(error).__name__ == "PackhorseError", error
    assert "client=" in str(error) and "packhorse[server]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("num_rollouts", "world_size", "batch_size"), [(3, 4, 1), (3, 2, 2), (9, 8, 1)])
def test_too_few_rollouts_are_refused_as_the_service_does(client, num_rollouts, world_size, batch_size):
    for planner in (None, client):
        with pytest.raises(InvalidRequestError, match=r"world_size.*allow_empty=True") as caught:
            pack_rollouts(
                Rollouts(queries=[[1, 2]] * num_rollouts, responses=[[3, 4]] * num_rollouts),
                max_seq_len=4,
                pad_token_id=0,
                client=planner,
                world_size=world_size,
                batch_size=batch_size,
            )
        assert caught.value.metadata["field"] == "num_bins_multiple_of"


def test_masks_keep_rollouts_apart():
    (batch,) = pack_rollouts(Rollouts(queries=[[1], [2, 2]], responses=[[5, 5], [6, 6]]), max_seq_len=9, pad_token_id=0)
    labels = build_labelled_mask(batch, "cpu")
    assert labels.tolist() == [[1, 1, 1, 1, 2, 2, 2, 0, 0]]
    mask = build_boolean_mask(batch, "cpu", causal=True, head_dim=False, mask_padding=True)
    index = torch.arange(9)
    expected = (labels[:, :, None] == labels[:, None, :]) & (labels != 0)[:, :, None] & (index[:, None] >= index)
    assert mask.shape == (1, 9, 9)
    assert torch.equal(mask, expected)


def test_shifted_or_not_the_loss_is_the_same(some):
    """A policy-gradient loss from logits, with the two alignments that the batch offers."""
    rollouts = some(30)
    torch.manual_seed(0)
    vocabulary = torch.nn.Embedding(900, 900).requires_grad_(False)

    def loss(shift):
        (batch,) = pack_rollouts(
            Rollouts(queries=rollouts.queries, responses=rollouts.responses, **rollouts.options()),
            max_seq_len=2048,
            pad_token_id=PAD,
            shift_labels=shift,
        )
        weights = build_loss_weights(batch, "sample")
        logits = vocabulary(batch["input_ids"])
        parts = [batch["labels"], batch["advantages"], batch["logprobs"], weights]
        if not shift:
            logits, parts = logits[:, :-1], [part[:, 1:] for part in parts]
        labels, advantages, logprobs, weights = parts
        new = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return (weights * -advantages * torch.exp(new - logprobs)).sum()

    torch.testing.assert_close(loss(False), loss(True), rtol=1e-5, atol=0)
    assert loss(True) != 0


def cost_of(batch, cost_linear):
    return int((cost_linear * batch["layout"].lengths + batch["layout"].lengths ** 2).sum())


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("balance", [*Balance, "optimizer_step"])
def test_every_ranks_batches_cost_the_same(some, balance, batch_size):
    rollouts = some(300)
    options = {"max_seq_len": 64, "pad_token_id": PAD, "world_size": 4, "batch_size": batch_size}
    batches = pack_rollouts(
        Rollouts(queries=rollouts.queries, responses=rollouts.responses),
        **options,
        packing=PackOptions(balance=balance, cost_linear=10, algorithm="next-fit"),
    )
    assert sorted(np.concatenate([batch["ids"] for batch in batches]).tolist()) == list(range(300))
    costs = np.array([cost_of(batch, 10) for batch in batches]).reshape(-1, 4)
    at_steps = costs.max(axis=1).sum() / costs.mean(axis=1).sum() - 1
    in_sum = costs.sum(axis=0).max() / costs.sum(axis=0).mean() - 1
    if balance == Balance.MICRO_STEP:
        assert at_steps < 0.04
    elif balance == Balance.NONE:
        assert at_steps > 0.15
        assert in_sum > 0.01
    else:
        assert in_sum < 0.001


@pytest.mark.parametrize("flatten", [False, True])
def test_no_pack_mixes_policy_versions(some, flatten):
    rollouts = some(60)
    versions = np.random.default_rng(3).choice([0, 7, 8], 60)
    batches = pack_rollouts(
        Rollouts(queries=rollouts.queries, responses=rollouts.responses, policy_versions=versions),
        max_seq_len=64,
        pad_token_id=PAD,
        world_size=5,
        batch_size=2,
        flatten=flatten,
        packing=PackOptions(balance="micro-step"),
    )
    rows = pack_rollouts(
        Rollouts(queries=rollouts.queries, responses=rollouts.responses, policy_versions=versions),
        max_seq_len=64,
        pad_token_id=PAD,
        world_size=5,
        batch_size=2,
        packing=PackOptions(balance="micro-step"),
    )
    assert len(batches) % 5 == 0
    for batch, unflattened in zip(batches, rows, strict=True):
        assert batch["policy_versions"].dtype == batch["pack_policy_versions"].dtype == torch.int64
        assert batch["policy_versions"].tolist() == versions[batch["ids"]].tolist()
        packs = np.split(batch["ids"].numpy(), unflattened["layout"].row_ends[:-1])
        assert [set(versions[pack]) for pack in packs] == [{v} for v in batch["pack_policy_versions"].tolist()]


@pytest.mark.parametrize("flatten", [False, True])
def test_empty_packs_on_request(flatten):
    batches = pack_rollouts(
        Rollouts(
            queries=[[1, 2]] * 3,
            responses=[[5]] * 3,
            policy_versions=[6, 6, 9],
            group_ids=[1, 1, 2],
            advantages=[1, 2, 3],
        ),
        max_seq_len=4,
        pad_token_id=PAD,
        world_size=4,
        batch_size=2,
        flatten=flatten,
        packing=PackOptions(allow_empty=True),
    )
    assert len(batches) == 4
    assert sorted(np.concatenate([batch["ids"] for batch in batches]).tolist()) == [0, 1, 2]
    counts = sum(LossCounts.of_batch(batch) for batch in batches)
    of_packs = [version for batch in batches for version in batch["pack_policy_versions"].tolist()]
    assert sorted(of_packs) == [-1] * 5 + [6, 6, 9]
    assert sum(build_loss_weights(batch, "sample", counts=counts).sum() for batch in batches) == 1
    empty = [batch for batch in batches if not len(batch["ids"])]
    assert len(empty) == 2
    for batch in empty:
        assert (batch["input_ids"] == PAD).all()
        assert (batch["labels"] == IGNORED).all()
        assert batch["input_ids"].shape == ((1, 1) if flatten else (2, 4))
        for reduction in ("token", "sequence", "sample"):
            assert (build_loss_weights(batch, reduction, counts=counts) == 0).all()
            assert (build_loss_weights(batch, reduction) == 0).all()  # not 0 / 0
        for name in ("advantages", "response_mask", "tool_mask", "dones"):
            assert not batch[name].any()


def test_reference_logprobs_stand_where_logprobs_do(some):
    rollouts = some(30)
    other = [[2 * value for value in row] for row in rollouts.logprobs]
    for batch in pack_rollouts(
        Rollouts(
            queries=rollouts.queries, responses=rollouts.responses, **rollouts.options(), reference_logprobs=other
        ),
        max_seq_len=64,
        pad_token_id=PAD,
    ):
        assert batch["logprobs"].any()
        assert torch.equal(batch["reference_logprobs"], 2 * batch["logprobs"])
