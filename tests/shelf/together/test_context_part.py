"""A rank's part of a bin: every token on one rank, labels shifted within sequences, ranks without work, refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils.data import default_convert

from packhorse.client import BatchAssembler, BinBlock, PackedBatch
from packhorse.client.sources import IndexableSource
from packhorse.parallel import ContextBatch, ContextCounts, context_batch, context_batches
from packhorse.topology import ContextRule

RULE = ContextRule(tokens_per_rank=16, max_context_parallel=4)
LENGTHS = [24, 16, 8]
"""Sequence i has the tokens 100·i, 100·i + 1, …; 24 takes two ranks, and its rest the 8."""


def bin_of(lengths: list[int], max_seq_len: int = 64) -> PackedBatch:
    return step_of([lengths], max_seq_len)


def step_of(
    bins: list[list[int]], max_seq_len: int = 64, rule: ContextRule | None = None, *, shift: bool = False
) -> PackedBatch:
    lengths = [length for each in bins for length in each]
    tokens = [np.arange(length) + 100 * id for id, length in enumerate(lengths)]
    block = BinBlock(
        ids=np.arange(len(lengths)),
        lengths=np.array(lengths, dtype=np.int64),
        bin_ends=np.cumsum([len(each) for each in bins]),
        positions=np.arange(len(bins)),
    )
    assembler = BatchAssembler(max_seq_len, context_rule=rule, shift_labels=shift)
    return assembler.assemble(block, IndexableSource(tokens))


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_every_token_and_its_label_is_on_one_rank(layout: str) -> None:
    batch = bin_of(LENGTHS)
    parts = [context_batch(batch, RULE, rank, layout=layout) for rank in range(4, 8)]
    assert [(part.cp_size, part.cp_rank, part.first_rank) for part in parts] == [
        (2, 0, 4),
        (2, 1, 4),
        (1, 0, 6),
        (1, 0, 7),
    ]
    assert pairs_of(parts) == wanted(LENGTHS)
    for part in parts[:3]:
        assert (part.input_ids % 100 == part.position_ids).all()
    assert [part.ids.tolist() for part in parts] == [[0, 2], [0, 2], [1], []]
    assert [part.cu_seqlens.tolist() for part in parts[:3]] == [[0, 24, 32], [0, 24, 32], [0, 16]]
    assert (parts[0].num_tokens, parts[0].sum_of_squares, parts[0].max_seqlen) == (32, 24**2 + 8**2, 24)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous", "blocks", None])
def test_labels_are_shifted_once_whoever_shifts_them(layout: str | None) -> None:
    bins = [LENGTHS, [64], []]
    for rank in range(4):
        for lengths in bins:
            one, other = (context_batch(step_of([lengths], shift=shift), RULE, rank, layout=layout) for shift in (0, 1))
            assert torch.equal(one.labels, other.labels)
        of_step = [context_batches(step_of(bins, shift=shift), RULE, rank, layout=layout) for shift in (False, True)]
        for one, other in zip(*of_step, strict=True):
            assert torch.equal(one.labels, other.labels)
    batch = step_of([LENGTHS])
    del batch["shift_labels"]
    with pytest.raises(ValueError, match="nothing says whether this batch's labels are shifted"):
        context_batch(batch, RULE, 0)


def test_a_full_bin_ends_without_a_label() -> None:
    parts = [context_batch(bin_of([64]), RULE, rank) for rank in range(4)]
    assert pairs_of(parts) == wanted([64])


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_an_optimizer_step_is_dealt_whole(layout: str) -> None:
    """Rows of several bins; ranks have different numbers of parts, and each has one at least."""
    bins = [[64], LENGTHS, [8, 8, 8, 8], [16]]
    of_ranks = [context_batches(step_of(bins), RULE, rank, layout=layout) for rank in range(4)]
    assert pairs_of([part for parts in of_ranks for part in parts]) == wanted([n for each in bins for n in each])
    for rank, parts in enumerate(of_ranks):
        assert all(part.first_rank + part.cp_rank == rank for part in parts)
        assert (parts[0].cp_size, parts[0].ids.tolist()) == (4, [0])
    alone = [context_batches(step_of([[8]]), RULE, rank, layout=layout) for rank in range(4)]
    assert [[part.num_tokens for part in parts] for parts in alone] == [[8]] * 4  # who has least to do waits for none
    assert [part.num_tokens for part in context_batches(step_of([[]]), RULE, 2)] == [0]


def test_without_a_layout_every_rank_has_whole_sequences() -> None:
    parts = [context_batch(bin_of(LENGTHS), RULE, rank, layout=None) for rank in range(4)]
    assert [part.lengths.tolist() for part in parts] == [[24, 8], [24, 8], [16], []]
    for part in parts[:2]:
        assert part.input_ids[0].tolist() == [*range(24), *range(200, 208)]
        assert part.labels[0].tolist() == [*range(1, 24), -100, *range(201, 208), -100]
    assert [part.cp_rank for part in parts] == [0, 1, 0, 0]


def pairs_of(parts: list[ContextBatch]) -> list[tuple[int, int]]:
    """Tokens with their labels, of parts that hold any."""
    return sorted(
        pair
        for part in parts
        if part.num_tokens
        for pair in zip(part.input_ids[0].tolist(), part.labels[0].tolist(), strict=True)
    )


def wanted(lengths: list[int]) -> list[tuple[int, int]]:
    return sorted(
        (100 * id + i, 100 * id + i + 1 if i + 1 < length else -100)
        for id, length in enumerate(lengths)
        for i in range(length)
    )


def test_a_rank_without_sequences_has_padding_without_loss() -> None:
    idle = context_batch(bin_of(LENGTHS), RULE, 3)
    assert idle.input_ids.shape == (1, 1)
    assert (idle.labels == -100).all()
    assert (idle.cp_size, idle.num_tokens, idle.cu_seqlens.tolist()) == (1, 0, [0, 1])
    assert context_batch(bin_of([]), RULE, 0).labels.tolist() == [[-100]]


def test_blocks_pad_to_whole_blocks() -> None:
    parts = [context_batch(bin_of(LENGTHS), RULE, rank, layout="blocks") for rank in range(4)]
    assert [part.input_ids.shape[1] for part in parts] == [128] * 4
    labels = torch.cat([part.labels[0] for part in parts])
    assert int((labels != -100).sum()) == sum(LENGTHS) - len(LENGTHS)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous", "blocks", None])
@pytest.mark.parametrize("wait", ["micro-step", "step"])
def test_counts_of_an_optimizer_step_have_each_sequence_once(layout: str | None, wait: str) -> None:
    bins = [[64], LENGTHS, [8, 8, 8, 8], []]
    counts = []
    for rank in range(4):
        if wait == "step":
            parts = context_batches(step_of(bins), RULE, rank, layout=layout)
        else:
            parts = [context_batch(bin_of(each), RULE, rank, layout=layout) for each in bins]
        counts.append(ContextCounts.of_parts(parts))
        assert counts[-1].num_micro_steps == len(parts) == ContextCounts.of_parts(parts).all_reduce().num_micro_steps
    lengths = [length for each in bins for length in each]
    assert sum(int(each.num_tokens) for each in counts) == sum(lengths)
    assert sum(int(each.sum_of_squares) for each in counts) == sum(length**2 for length in lengths)
    assert sum(int(each.num_targets) for each in counts) == sum(lengths) - len(lengths)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="prepare the dataset with align=8"):
        context_batch(bin_of([23]), RULE, 0)
    with pytest.raises(ValueError, match="does not fit 64"):
        context_batch(bin_of([65], 65), RULE, 0)
    with pytest.raises(ValueError, match="PackedBatch's own keys: take no preset"):
        context_batch({"tokens": torch.zeros(1, 64)}, RULE, 0)
    with pytest.raises(ValueError, match="must hold one bin, got 2: take batch_size 1"):
        context_batch(step_of([[8], [8]]), RULE, 0)


def test_another_rule_than_the_dataset_s_is_refused() -> None:
    batch, other = step_of([LENGTHS], rule=RULE), ContextRule(32, 2)
    assert ContextRule(*batch["context_rule"]) == RULE
    assert context_batch(batch, RULE, 1).cp_size == 2
    for cut in (context_batch, context_batches):
        with pytest.raises(ValueError, match=r"tokens_per_rank=32, .* prepared with ContextRule\(tokens_per_rank=16"):
            cut(batch, other, 1)


def test_the_rule_goes_where_batches_go(tmp_path: Path) -> None:
    batch = step_of([LENGTHS], rule=RULE)
    torch.save(batch, tmp_path / "batch.pt")
    assert context_batch(torch.load(tmp_path / "batch.pt", weights_only=True), RULE, 0).cp_size == 2
    assert apply_to_collection(batch, torch.Tensor, torch.clone)["context_rule"] == batch["context_rule"]
    assert context_batch(default_convert(batch), RULE, 0).cp_size == 2
