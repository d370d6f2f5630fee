"""Preference pairs: both sequences in one row, told apart token by token; sums over sequences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import PackLayout
from packhorse.client.errors import InvalidRequestError
from packhorse.losses import LossCounts, build_loss_weights, sequence_log_probs, sum_over_sequences
from packhorse.rollouts import PackOptions, pack_pairs, pair_log_probs

PAD, IGNORED = 3, -100


def some_pairs(num_pairs, seed=0):
    """Prompts, chosen and rejected answers: at most 10, 12 and 12 tokens, so 44 a pair."""
    random = np.random.default_rng(seed)
    return tuple(
        [random.integers(5, 60, random.integers(1, most + 1)).tolist() for _ in range(num_pairs)]
        for most in (10, 12, 12)
    )


@settings(max_examples=50)
@given(
    num_pairs=st.integers(16, 30),  # enough for any multiple of bins asked for below
    seed=st.integers(0, 2**32),
    shift=st.booleans(),
    flat=st.booleans(),
    batch_size=st.integers(1, 2),
    world_size=st.integers(1, 4),
)
def test_every_pair_is_in_one_row_and_every_token_in_its_place(num_pairs, seed, shift, flat, batch_size, world_size):
    prompts, *answers = some_pairs(num_pairs, seed)
    batches = pack_pairs(
        prompts, *answers, max_seq_len=64, pad_token_id=PAD, world_size=world_size, batch_size=batch_size,
        shift_labels=shift, flatten=flat,
    )  # fmt: skip
    assert len(batches) % world_size == 0
    came = []
    for batch in batches:
        pairs = batch["pair_ids"].tolist()
        assert batch["ids"].tolist() == [2 * pair + i % 2 for i, pair in enumerate(pairs)]
        assert batch["is_chosen"].tolist() == [True, False] * (len(pairs) // 2)
        assert pairs[::2] == pairs[1::2]
        assert batch["groups"].numbers.tolist() == pairs
        assert batch["groups"].num_groups == num_pairs
        assert (np.diff(batch["layout"].row_ends, prepend=0) % 2 == 0).all()  # no pair is torn apart
        came += pairs[::2]
        tokens, labels = batch["input_ids"].flatten(), batch["labels"].flatten()
        targets = torch.full_like(labels, IGNORED)
        for i, (pair, start) in enumerate(zip(pairs, batch["layout"].starts.tolist(), strict=True)):
            prompt, answer = prompts[pair], answers[i % 2][pair]
            end = start + len(prompt) + len(answer)
            assert tokens[start:end].tolist() == prompt + answer
            targets[start + len(prompt) - shift : end - shift] = torch.tensor(answer)
        assert torch.equal(labels, targets)
    assert sorted(came) == list(range(num_pairs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chosen": [[1]]}, "chosen has 1 entries for 2 prompts"),
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [[1], []]}, "pair 1 has 0 tokens in its prompt, .*: an empty prompt leaves"),
        ({"rejected": [[], [1]]}, "pair 0 has .*1 chosen and 0 rejected ones: an empty answer has nothing"),
        (
            {"chosen": [[1], [1] * 7]},
            r"pair 1 takes 10 tokens .*chosen 8 and rejected 2\): that is over max_seq",
        ),
        ({"prompts": [[1.5], [1]]}, r"prompts\[0\] must be 1-D and of a type that fits"),
        ({"prefixes": "shared"}, "prefixes must be 'repeated' or 'tree'"),
        ({"prefixes": "tree", "shift_labels": False}, "labels of a tree are for the next token"),
        ({"batch_size": 0}, "must be at least 1, got 1 and 0"),
        ({"packing": PackOptions(balance="micro-step")}, "pairs are packed without a balance, got micro-step"),
    ],
)
def test_what_cannot_be_packed_is_refused(options, message):
    pairs = {"prompts": [[1], [2]], "chosen": [[3], [4]], "rejected": [[5], [6]], "max_seq_len": 8}
    with pytest.raises(ValueError, match=message):
        pack_pairs(**(pairs | options), pad_token_id=PAD)


def test_fewer_pairs_than_ranks(client):
    pairs = [[1]], [[3]], [[5, 6]]
    with pytest.raises(InvalidRequestError, match=r"allow_empty=True\) .* or more pairs"):
        pack_pairs(*pairs, max_seq_len=8, pad_token_id=PAD, world_size=2, client=client)
    full, empty = pack_pairs(
        *pairs, max_seq_len=8, pad_token_id=PAD, world_size=2, client=client, packing=PackOptions(allow_empty=True)
    )
    assert full["pair_ids"].tolist() == [0, 0]
    logits = torch.zeros(1, 8, 9, requires_grad=True)
    log_probs = pair_log_probs(empty, logits)
    assert log_probs.chosen.shape == log_probs.rejected.shape == (0,)
    (log_probs.chosen - log_probs.rejected).sum().backward()
    assert not logits.grad.any()


def test_a_limit_of_pairs_in_a_bin():
    batches = pack_pairs(
        *some_pairs(20), max_seq_len=512, pad_token_id=PAD, packing=PackOptions(max_sequences_per_bin=3)
    )
    assert max(len(batch["ids"]) for batch in batches) == 6


def test_pairs_are_counted_and_weighed_as_groups():
    batches = pack_pairs(*some_pairs(20), max_seq_len=64, pad_token_id=PAD)
    counts = sum(LossCounts.of_batch(batch) for batch in batches)
    assert int(counts.num_groups) == 20
    for batch in batches:
        weights = build_loss_weights(batch, "sample", counts=counts)
        of_pairs = sum_over_sequences(batch, weights).view(-1, 2).sum(1)
        torch.testing.assert_close(of_pairs, torch.full_like(of_pairs, 1 / 20))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_a_plain_loop(shift, dtype):
    generator = torch.Generator().manual_seed(1)
    for batch in pack_pairs(*some_pairs(9), max_seq_len=64, pad_token_id=PAD, shift_labels=shift, batch_size=2):
        logits = torch.randn(*batch["labels"].shape, 60, generator=generator).to(dtype).requires_grad_()
        table = logits.float().log_softmax(-1)
        ends = batch["layout"].starts + batch["layout"].lengths
        expected = []
        for start, end in zip(batch["layout"].starts.tolist(), ends.tolist(), strict=True):
            labels = batch["labels"].flatten()[start:end]
            rows = table.flatten(0, 1)[start:end]
            steps = [(t if shift else t - 1, label) for t, label in enumerate(labels.tolist()) if label != IGNORED]
            expected.append(sum(rows[t, label] for t, label in steps))
        sums = sequence_log_probs(batch, logits)
        assert sums.dtype == torch.float32
        torch.testing.assert_close(sums, torch.stack(expected))
        factors = torch.arange(1.0, len(sums) + 1)
        (mine,) = torch.autograd.grad((sums * factors).sum(), logits)
        (plain,) = torch.autograd.grad((torch.stack(expected) * factors).sum(), logits)
        torch.testing.assert_close(mine, plain)


def test_sums_of_what_does_not_fit_are_refused():
    layout = PackLayout.of_rows([2, 1], [2], 4)
    with pytest.raises(ValueError, match=r"values have shape \[4\], and the batch's layout has 1 rows of 4"):
        sum_over_sequences({"layout": layout}, torch.zeros(4))
    batch = {"labels": torch.zeros(1, 4, dtype=torch.int64), "layout": layout}
    with pytest.raises(ValueError, match="nothing says whether this batch's labels are shifted; pass shift_labels="):
        sequence_log_probs(batch, torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match=r"logits have shape \[1, 3, 2\], and labels \[1, 4\]"):
        sequence_log_probs(batch, torch.zeros(1, 3, 2), shift_labels=True)
