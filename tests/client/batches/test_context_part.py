"""A rank's part of a bin: every token on one rank, labels shifted within sequences, ranks without work, refusals."""

import numpy as np
import pytest
import torch

from packhorse.client import BatchAssembler, BinBlock
from packhorse.client.batches import context_batch
from packhorse.client.sources import IndexableSource
from packhorse.topology import ContextRule

RULE = ContextRule(tokens_per_rank=16, max_context_parallel=4)
LENGTHS = [24, 16, 8]
"""Sequence i has the tokens 100·i, 100·i + 1, …; 24 takes two ranks, and its rest the 8."""


def bin_of(lengths: list[int], max_seq_len: int = 64) -> object:
    tokens = [np.arange(length) + 100 * id for id, length in enumerate(lengths)]
    block = BinBlock(
        ids=np.arange(len(lengths)),
        lengths=np.array(lengths, dtype=np.int64),
        bin_ends=np.array([len(lengths)]),
        positions=np.array([0]),
    )
    return BatchAssembler(max_seq_len).assemble(block, IndexableSource(tokens))


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
    pairs = [
        pair
        for part in parts
        if part.num_tokens
        for pair in zip(part.input_ids[0].tolist(), part.labels[0].tolist(), strict=True)
    ]
    wanted = [
        (100 * id + i, 100 * id + i + 1 if i + 1 < length else -100)
        for id, length in enumerate(LENGTHS)
        for i in range(length)
    ]
    assert sorted(pairs) == sorted(wanted)
    for part in parts[:3]:
        assert (part.input_ids % 100 == part.position_ids).all()
    assert [part.ids.tolist() for part in parts] == [[0, 2], [0, 2], [1], []]
    assert [part.cu_seqlens.tolist() for part in parts[:3]] == [[0, 24, 32], [0, 24, 32], [0, 16]]
    assert (parts[0].num_tokens, parts[0].sum_of_squares, parts[0].max_seqlen) == (32, 24**2 + 8**2, 24)


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


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="prepare the dataset with align=8"):
        context_batch(bin_of([23]), RULE, 0)
    with pytest.raises(ValueError, match="does not fit 64"):
        context_batch(bin_of([65], 65), RULE, 0)
    with pytest.raises(ValueError, match="take batch_size 1, and no preset"):
        context_batch({"tokens": torch.zeros(1, 64)}, RULE, 0)
