"""The conversion to open-instruct's fields, against an oracle that builds them token by token."""

import math

import numpy as np
import pytest
import torch

from packhorse.rollouts import OpenInstructPacks, PackOptions, Rollouts, pack_rollouts, to_open_instruct


def oracle(rollouts, members):
    """One pack of open-instruct's `PackedSequences` with `mask_tool_use`, from these rollouts in this order."""
    pack = {name: [] for name in OpenInstructPacks.__annotations__}
    for place, index in enumerate(members):
        query, response = rollouts.queries[index], rollouts.responses[index]
        length = len(query) + len(response)
        numbers = [0 if tool else index + 1 for tool in rollouts.tool_masks[index]]
        pack["query_responses"] += query + response
        pack["attention_masks"] += [place + 1] * length
        pack["position_ids"] += range(length)
        pack["response_masks"] += [0] * len(query) + numbers
        pack["dones"] += [0] * (length - 1) + [index + 1]
        pack["num_actions"].append(len(response))
        pack["packed_seq_lens"].append(length)
        pack["advantages"] += [0.0] * len(query) + [rollouts.advantages[index] if n else 0.0 for n in numbers]
        pairs = zip(rollouts.logprobs[index], numbers, strict=True)
        pack["vllm_logprobs"] += [math.nan] * len(query) + [value if n else 0.0 for value, n in pairs]
        pack["rewards"] += [0.0] * (length - 1) + [float(index)]
    return pack


@pytest.mark.parametrize("batch_size", [1, 2])
def test_every_field_is_open_instructs(some, rows_of, batch_size):
    rollouts = some(60)
    batches = pack_rollouts(
        Rollouts(
            queries=rollouts.queries,
            responses=rollouts.responses,
            **rollouts.options(),
            rewards=range(60),
            dones=[False] * 60,
        ),
        max_seq_len=96,
        pad_token_id=0,
        world_size=4,
        batch_size=batch_size,
    )
    packs = to_open_instruct(batches)
    assert packs.keys() == OpenInstructPacks.__annotations__.keys()
    for name, tensors in packs.items():
        is_float = name in ("advantages", "vllm_logprobs", "rewards")
        for tensor, members in zip(tensors, rows_of(batches), strict=True):
            expected = torch.tensor(oracle(rollouts, members)[name], dtype=torch.float32 if is_float else torch.int64)
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
            assert tensor.untyped_storage().nbytes() == tensor.nbytes  # nothing of its batch travels with it


def test_advantages_can_be_looked_up_by_response_masks(some):
    rollouts = some(20)
    packs = to_open_instruct(
        pack_rollouts(
            Rollouts(queries=rollouts.queries, responses=rollouts.responses, **rollouts.options()),
            max_seq_len=96,
            pad_token_id=0,
        )
    )
    table = np.array([0.0, *rollouts.advantages], dtype=np.float32)
    for mask, advantages in zip(packs["response_masks"], packs["advantages"], strict=True):
        assert torch.equal(torch.from_numpy(table[mask.numpy()]), advantages)


def test_only_what_was_given_is_there_and_mixtures_are_refused():
    plain = pack_rollouts(Rollouts(queries=[[1]], responses=[[2]]), max_seq_len=4, pad_token_id=0)
    with_rewards = pack_rollouts(Rollouts(queries=[[1]], responses=[[2]], rewards=[1.0]), max_seq_len=4, pad_token_id=0)
    assert not {"advantages", "vllm_logprobs", "rewards"} & to_open_instruct(plain).keys()
    with pytest.raises(ValueError, match="in all batches or in none"):
        to_open_instruct(plain + with_rewards)
    assert to_open_instruct([])["query_responses"] == []


def test_shifted_batches_are_refused():
    with pytest.raises(ValueError, match="shift_labels=False"):
        to_open_instruct(
            pack_rollouts(Rollouts(queries=[[1]], responses=[[2]]), max_seq_len=4, pad_token_id=0, shift_labels=True)
        )


def test_empty_packs_are_refused():
    batches = pack_rollouts(
        Rollouts(queries=[[1]], responses=[[2]]),
        max_seq_len=4,
        pad_token_id=0,
        world_size=2,
        packing=PackOptions(allow_empty=True),
    )
    with pytest.raises(ValueError, match="pack without allow_empty"):
        to_open_instruct(batches)


def test_the_packs_of_one_rank_follow_each_other(some):
    rollouts = some(40)
    batches = pack_rollouts(
        Rollouts(queries=rollouts.queries, responses=rollouts.responses),
        max_seq_len=64,
        pad_token_id=0,
        world_size=2,
        packing=PackOptions(balance="optimizer-step"),
    )
    packs = to_open_instruct([batch for rank in range(2) for batch in batches[rank::2]])
    costs = np.array([sum(n * n for n in lengths.tolist()) for lengths in packs["packed_seq_lens"]]).reshape(2, -1)
    tokens = np.array([len(pack) for pack in packs["query_responses"]]).reshape(2, -1)
    of_ranks = (24_576 * tokens + costs).sum(axis=1)
    assert np.ptp(of_ranks) / of_ranks.mean() < 0.01
