"""Loss weights: plain means, however sequences are packed, dealt over ranks and accumulated.

Sequences stand in a list; an oracle takes their means without any packing. The same sequences are then packed in
different ways, and losses and gradients of a tiny model must be the oracle's.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import PackLayout
from packhorse.client.batches.labels import write_causal_labels
from packhorse.losses import LossCounts, LossReduction, SequenceGroups, build_loss_weights
from packhorse.rollouts import Rollouts, pack_rollouts

VOCABULARY = 50
REDUCTIONS = [*LossReduction]


@dataclass
class Sequence:
    """One sequence; `is_target` holds what a loss mask would choose."""

    tokens: np.ndarray
    is_target: np.ndarray
    group: int


def some_sequences(seed, count=30, num_groups=7):
    """Random sequences; some have no target, group 0 none at all, and the last group no sequence."""
    generator = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        length = int(generator.integers(1, 17))
        group = int(generator.integers(0, num_groups - 1))
        is_target = generator.random(length) < generator.choice([0.0, 0.2, 1.0])
        is_target[0] = False
        sequences.append(Sequence(generator.integers(0, VOCABULARY, length), is_target & (group > 0), group))
    return sequences


def some_batches(sequences, seed, num_batches, *, shift, flat, num_groups=7):
    """The sequences in random order in `num_batches` batches of rows of 24 tokens, some of them empty."""
    generator = random.Random(seed)
    order = list(range(len(sequences)))
    generator.shuffle(order)
    batches = []
    for part in range(num_batches):
        members = order[part::num_batches]
        rows = [[]]
        for index in members:
            filled = sum(len(sequences[i].tokens) for i in rows[-1])
            if filled + len(sequences[index].tokens) > 24 or generator.random() < 0.2:
                rows += [[] for _ in range(generator.randrange(1, 3))]
            rows[-1].append(index)
        members = [index for row in rows for index in row]
        layout = PackLayout.of_rows(
            np.array([len(sequences[i].tokens) for i in members], dtype=np.int64),
            np.cumsum([len(row) for row in rows]),
            24,
        )
        layout = layout.flattened() if flat else layout
        input_ids = np.zeros(layout.num_rows * layout.row_tokens, dtype=np.int64)
        chosen = np.zeros(len(input_ids), dtype=np.bool_)
        for index, start in zip(members, layout.starts, strict=True):
            input_ids[start : start + len(sequences[index].tokens)] = sequences[index].tokens
            chosen[start : start + len(sequences[index].tokens)] = sequences[index].is_target
        labels = np.empty_like(input_ids)
        write_causal_labels(labels, input_ids, layout, is_predicted=chosen, shift=shift)
        shape = (layout.num_rows, layout.row_tokens)
        numbers = np.array([sequences[i].group for i in members], dtype=np.int64)
        batches.append(
            {
                "input_ids": torch.from_numpy(input_ids.reshape(shape)),
                "labels": torch.from_numpy(labels.reshape(shape)),
                "layout": layout,
                "groups": SequenceGroups(numbers=numbers, num_groups=num_groups),
                "members": members,
            }
        )
    return batches


def tiny_model():
    """Logits of the next token from the token alone, so that packing changes nothing but weights."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)).double()


def token_losses(model, batch, *, shift):
    """Loss of every label: [B, L], 0 where there is none; aligned with labels."""
    logits, labels = model(batch["input_ids"]), batch["labels"]
    if not shift:
        logits = torch.cat([torch.zeros_like(logits[:, :1]), logits[:, :-1]], dim=1)
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def oracle_loss(model, sequences, reduction):
    """The mean, sequence by sequence."""
    by_key, by_sequence = {}, []
    for sequence in sequences:
        tokens = torch.from_numpy(sequence.tokens)
        losses = torch.nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:], reduction="none")
        losses = losses[torch.from_numpy(sequence.is_target[1:])]
        if len(losses):
            by_key.setdefault(sequence.group, []).append(losses)
            by_sequence.append(losses)
    if reduction == "token":
        return torch.cat(by_sequence).mean()
    if reduction == "sequence":
        return torch.stack([losses.mean() for losses in by_sequence]).mean()
    return torch.stack([torch.cat(losses).mean() for losses in by_key.values()]).mean()


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def with_gradient(loss_of):
    """Loss and gradient of a fresh tiny model; `loss_of` may return a list of losses to add up."""
    model = tiny_model()
    losses = loss_of(model)
    losses = losses if isinstance(losses, list) else [losses]
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses), gradient(model)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(
    seed=st.integers(0, 2**32),
    order=st.integers(),
    num_batches=st.integers(1, 6),
    shift=st.booleans(),
    flat=st.booleans(),
)
@settings(max_examples=12)
def test_any_packing_and_accumulation_gives_the_plain_mean(reduction, seed, order, num_batches, shift, flat):
    sequences = some_sequences(seed)
    sequences[0].is_target[:] = True  # at least one target
    sequences[0].tokens, sequences[0].is_target = np.arange(9), np.array([False] + [True] * 8)
    sequences[0].group = 3
    batches = some_batches(sequences, order, num_batches, shift=shift, flat=flat)
    counts = sum(LossCounts.of_batch(batch) for batch in batches)

    def packed(model):
        weights = [build_loss_weights(batch, reduction, counts=counts) for batch in batches]
        for part, batch in zip(weights, batches, strict=True):
            assert part.dtype == torch.float32
            assert torch.equal(part != 0, batch["labels"] != -100)
        return [
            (part * token_losses(model, batch, shift=shift)).sum() for part, batch in zip(weights, batches, strict=True)
        ]

    assert_same(with_gradient(packed), with_gradient(lambda model: oracle_loss(model, sequences, reduction)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_means_of_packs_are_not_that(reduction):
    """The trap: each pack's own mean, averaged over packs, depends on what was packed together."""
    sequences = some_sequences(1)
    expected = with_gradient(lambda model: oracle_loss(model, sequences, reduction))

    def naive(order):
        batches = some_batches(sequences, order, 5, shift=True, flat=True)

        def loss(model):
            return [
                (build_loss_weights(batch, reduction) * token_losses(model, batch, shift=True)).sum() / len(batches)
                for batch in batches
            ]

        return with_gradient(loss)

    one, other = naive(1), naive(2)
    for left, right in ((one, other), (one, expected), (other, expected)):
        assert (left[0] - right[0]).abs() > 1e-3
        assert (left[1] - right[1]).abs().max() > 1e-4


def train_one_rank(rank, world_size, meeting_file, found):
    """One rank of DDP over gloo: two micro-batches, gradients averaged by DDP and added up over micro-batches."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=world_size)
    try:
        sequences = some_sequences(3)
        mine = some_batches(sequences, 11, 2 * world_size, shift=True, flat=False)[rank::world_size]
        counts = sum(LossCounts.of_batch(batch) for batch in mine).all_reduce()
        for reduction in REDUCTIONS:
            model = torch.nn.parallel.DistributedDataParallel(tiny_model())
            weights = [
                build_loss_weights(batch, reduction, counts=counts, gradient_divisor=world_size) for batch in mine
            ]
            with model.no_sync():
                first = (weights[0] * token_losses(model, mine[0], shift=True)).sum()
                first.backward()
            second = (weights[1] * token_losses(model, mine[1], shift=True)).sum()
            second.backward()
            loss = (first + second).detach() / world_size
            dist.all_reduce(loss)
            found[rank, str(reduction)] = loss.item(), gradient(model).tolist()
        ids = [np.array([sequences[i].group * 1000 - 2500 for i in batch["members"]]) for batch in mine]
        found[rank, "groups"] = [(g.numbers.tolist(), g.num_groups) for g in SequenceGroups.of_ids(*ids)]
    finally:
        dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_of_ddp(world_size, tmp_path):
    sequences = some_sequences(3)
    known = sorted({sequence.group for sequence in sequences})
    batches = some_batches(sequences, 11, 2 * world_size, shift=True, flat=False)
    with mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(train_one_rank, (world_size, tmp_path / "meeting", found), nprocs=world_size)
        found = dict(found)
    for reduction in REDUCTIONS:
        expected = with_gradient(lambda model, how=reduction: oracle_loss(model, sequences, how))
        for rank in range(world_size):
            loss, grads = (torch.tensor(part, dtype=torch.float64) for part in found[rank, reduction])
            assert_same((loss, grads), expected)
    for rank in range(world_size):
        numbers = [[known.index(sequences[i].group) for i in batch["members"]] for batch in batches[rank::world_size]]
        assert found[rank, "groups"] == [(part, len(known)) for part in numbers]


def test_each_weight_of_a_small_batch():
    layout = PackLayout.of_rows(np.array([3, 4, 2]), np.array([2, 3]), 8)
    ignored = -100
    labels = torch.tensor([[ignored, 7, 7, ignored, 7, 7, 7, ignored], [ignored, 7] + [ignored] * 6])
    batch = {"labels": labels, "layout": layout}
    groups = SequenceGroups(numbers=np.array([1, 0, 1]), num_groups=2)

    def weights(reduction, **options):
        return build_loss_weights(batch, reduction, groups=groups, **options)[labels != ignored].tolist()

    assert weights("token") == pytest.approx([1 / 6] * 6)
    assert weights("sequence") == pytest.approx([1 / 6] * 2 + [1 / 9] * 3 + [1 / 3])
    assert weights("sample") == pytest.approx([1 / 6] * 6)  # each group has three targets
    assert weights("token", gradient_divisor=4) == pytest.approx([4 / 6] * 6)
    shifted = {"labels": torch.cat([labels[:, 1:], torch.full((2, 1), ignored)], dim=1), "layout": layout}
    for reduction in REDUCTIONS:
        left = build_loss_weights(shifted, reduction, groups=groups)[:, :-1]
        assert torch.equal(left, build_loss_weights(batch, reduction, groups=groups)[:, 1:])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("lengths", [[], [3, 2]])
def test_without_any_target_there_is_no_loss_and_no_nan(reduction, lengths):
    layout = PackLayout.of_rows(np.array(lengths, dtype=np.int64), np.array([0, len(lengths)]), 6)
    batch = {"labels": torch.full((2, 6), -100), "layout": layout}
    groups = SequenceGroups(numbers=np.zeros(len(lengths), dtype=np.int64), num_groups=3)
    assert torch.equal(build_loss_weights(batch, reduction, groups=groups), torch.zeros(2, 6))


def test_sequences_without_a_target_are_not_counted():
    layout = PackLayout.of_rows(np.array([2, 2]), np.array([2]), 4)
    labels = torch.tensor([[-100, 5, -100, -100]])
    counts = LossCounts.of_batch(
        {"labels": labels, "layout": layout}, groups=SequenceGroups(numbers=np.array([2, 0]), num_groups=3)
    )
    assert (counts.num_targets, counts.num_sequences, counts.num_groups) == (1, 1, 1)
    assert counts.targets_of_groups.tolist() == [0, 0, 1]


def test_responses_to_one_prompt_are_a_sample():
    """As DAPO takes its mean within a prompt, and GRPO over prompts."""
    batches = pack_rollouts(
        Rollouts(queries=[[1, 2], [1, 2], [3]], responses=[[5] * 3, [5], [6] * 2]),
        max_seq_len=6,
        pad_token_id=0,
        world_size=2,
        shift_labels=True,
    )
    counts = sum(LossCounts.of_batch(batch) for batch in batches)
    assert sorted(counts.targets_of_groups.tolist()) == [2, 4]
    shares = {}
    for batch in batches:
        weights = build_loss_weights(batch, "sample", counts=counts)
        for label in (5, 6):
            shares[label] = shares.get(label, 0) + weights[batch["labels"] == label].sum().item()
    assert shares == pytest.approx({5: 0.5, 6: 0.5})


def test_refusals():
    layout = PackLayout.of_rows(np.array([2, 2]), np.array([2]), 4)
    batch = {"labels": torch.tensor([[-100, 5, -100, 5]]), "layout": layout}
    groups = SequenceGroups(numbers=np.array([0, 1]), num_groups=2)
    with pytest.raises(ValueError, match="reduction 'mean' is not one of token, sequence, sample"):
        build_loss_weights(batch, "mean")
    with pytest.raises(ValueError, match="which sequences belong together"):
        build_loss_weights(batch, "sample")
    with pytest.raises(ValueError, match="counts know 0 groups and this batch is of 2"):
        build_loss_weights(batch, "sample", groups=groups, counts=LossCounts.of_batch(batch))
    with pytest.raises(ValueError, match="groups number 1 sequences, and the batch has 2"):
        LossCounts.of_batch(batch, groups=SequenceGroups(numbers=np.array([0]), num_groups=1))
    with pytest.raises(ValueError, match="num_groups must be the same"):
        LossCounts.of_batch(batch) + LossCounts.of_batch(batch, groups=groups)
    with pytest.raises(ValueError, match=r"shape \[1, 3\], and the batch's layout has 1 rows of 4"):
        build_loss_weights({"labels": batch["labels"][:, 1:], "layout": layout})
    with pytest.raises(ValueError, match="gradient_divisor must be at least 1"):
        build_loss_weights(batch, gradient_divisor=0)
    with pytest.raises(ValueError, match="carries no 'layout'"):
        build_loss_weights({"labels": batch["labels"]})
    with pytest.raises(ValueError, match=r"in \[0, num_groups\)"):
        SequenceGroups(numbers=np.array([0, 2]), num_groups=2)
    with pytest.raises(ValueError, match="must be int64"):
        SequenceGroups(numbers=np.array([0.0]), num_groups=2)


def test_groups_of_ids_without_ranks():
    first, second = SequenceGroups.of_ids([70, -4, 70], np.array([9, 70]))
    assert (first.numbers.tolist(), second.numbers.tolist()) == ([2, 0, 2], [1, 2])
    assert first.num_groups == second.num_groups == 3


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["labels", "counts"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_device_is_not_waited_for(reduction, where):
    (batch,) = some_batches(some_sequences(2), 2, 1, shift=True, flat=False)
    expected = build_loss_weights(batch, reduction)
    on_device = batch | ({"labels": batch["labels"].cuda()} if where == "labels" else {})
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = LossCounts.of_batch(on_device).all_reduce(device="cuda")
        weights = build_loss_weights(on_device, reduction, counts=counts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert weights.is_cuda
    torch.testing.assert_close(weights.cpu(), expected)
