"""Batches against an oracle that goes token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.masks import build_packing_cu_seqlens
from packhorse.client.sources import IndexableSource, TokenSourceError
from packhorse.client.streams.blocks import BinBlock


def block_of(bins):
    """A block from lists of (id, length)."""
    flat = [pair for one_bin in bins for pair in one_bin]
    return BinBlock(
        ids=np.array([i for i, _ in flat], np.int64),
        lengths=np.array([n for _, n in flat], np.int32),
        bin_ends=np.cumsum([len(one_bin) for one_bin in bins], dtype=np.int64),
        positions=np.arange(100, 100 + len(bins), dtype=np.int64),
    )


def oracle(bins, sequences, max_seq_len, pad_token_id, shift):
    """The batch as nested lists, one token at a time."""
    keys = ("input_ids", "labels", "sequence_ids", "position_ids", "attention_mask")
    batch = {key: [] for key in keys}
    cu_seqlens = [0]
    for one_bin in bins:
        row = {key: [] for key in keys}
        for label, (sequence_id, length) in enumerate(one_bin):
            tokens = list(sequences[sequence_id])
            for t, token in enumerate(tokens):
                row["input_ids"].append(token)
                if shift:
                    row["labels"].append(tokens[t + 1] if t + 1 < length else -100)
                else:
                    row["labels"].append(token if t else -100)
                row["sequence_ids"].append(label)
                row["position_ids"].append(t)
                row["attention_mask"].append(1)
            cu_seqlens.append(cu_seqlens[-1] + length)
        for p in range(max_seq_len - len(row["input_ids"])):
            for key, value in zip(keys, (pad_token_id, -100, len(one_bin), p, 0), strict=True):
                row[key].append(value)
        for key in keys:
            batch[key].append(row[key])
    lengths = [length for one_bin in bins for _, length in one_bin]
    return {**batch, "cu_seqlens": cu_seqlens, "max_seqlen": max(lengths, default=0), "shift_labels": shift}


@st.composite
def packed_bins(draw):
    max_seq_len = draw(st.integers(1, 24))
    bins, sequences = [], {}
    for _ in range(draw(st.integers(1, 5))):
        free, one_bin = max_seq_len, []
        for wanted in draw(st.lists(st.integers(1, max_seq_len), max_size=6)):
            if wanted <= free:
                sequence_id = 1000 - 7 * len(sequences)
                sequences[sequence_id] = draw(st.lists(st.integers(0, 50), min_size=wanted, max_size=wanted))
                one_bin.append((sequence_id, wanted))
                free -= wanted
        bins.append(one_bin)
    return max_seq_len, bins, sequences


@given(packed_bins(), st.booleans(), st.sampled_from([0, 99]))
def test_batch_equals_the_oracle(case, shift, pad_token_id):
    max_seq_len, bins, sequences = case
    assembler = BatchAssembler(max_seq_len, pad_token_id=pad_token_id, shift_labels=shift)
    batch = assembler.assemble(block_of(bins), IndexableSource(sequences))
    expected = oracle(bins, sequences, max_seq_len, pad_token_id, shift)
    del batch["layout"], batch["ids"]
    assert {key: v.tolist() if isinstance(v, torch.Tensor) else v for key, v in batch.items()} == expected
    dtypes = {key: v.dtype for key, v in batch.items() if isinstance(v, torch.Tensor)}
    int32 = {"sequence_ids", "cu_seqlens"}
    assert dtypes == {key: torch.int32 if key in int32 else torch.int64 for key in dtypes}
    assert type(batch["max_seqlen"]) is int


@given(packed_bins())
def test_offsets_are_those_of_the_tensors(case):
    max_seq_len, bins, sequences = case
    batch = BatchAssembler(max_seq_len).assemble(block_of(bins), IndexableSource(sequences))
    cu_seqlens, max_seqlen = build_packing_cu_seqlens(batch["sequence_ids"], batch["attention_mask"])
    assert batch["cu_seqlens"].tolist() == cu_seqlens.tolist()
    assert batch["max_seqlen"] == max_seqlen


@pytest.mark.parametrize("num_bins", [0, 1, 3])
def test_bins_without_sequences_are_rows_of_padding(num_bins):
    batch = BatchAssembler(4, pad_token_id=9).assemble(block_of([[]] * num_bins), IndexableSource([]))
    assert batch["input_ids"].tolist() == [[9] * 4] * num_bins
    assert batch["labels"].tolist() == [[-100] * 4] * num_bins
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3]] * num_bins
    assert batch["sequence_ids"].shape == (num_bins, 4)
    assert batch["cu_seqlens"].tolist() == [0]
    assert batch["max_seqlen"] == 0


def test_slice_of_a_larger_block():
    bins = [[(0, 2)], [(1, 3), (2, 1)], [(3, 2)]]
    sequences = [[1, 2], [3, 4, 5], [6], [7, 8]]
    batch = BatchAssembler(4).assemble(block_of(bins).slice(1, 3), IndexableSource(sequences))
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6], [7, 8, 0, 0]]


def test_overfull_bin_is_refused_with_its_position():
    with pytest.raises(ValueError, match=r"position 101 .*holds 5 tokens.*max_seq_len 4"):
        BatchAssembler(4).assemble(block_of([[(0, 4)], [(1, 3), (2, 2)]]), IndexableSource([[1] * 4, [1] * 3, [1] * 2]))
    with pytest.raises(ValueError, match="max_seq_len"):
        BatchAssembler(0)


def test_truncated_sequences_give_their_first_tokens():
    block, source = block_of([[(0, 2)]]), IndexableSource([[5, 6, 7]])
    for assembler in (BatchAssembler(3), BatchAssembler(3, truncate=True)):  # 2 tokens fit 3: they were not cut to it
        with pytest.raises(TokenSourceError, match=r"sequence 0: the plan says 2 tokens, the source holds 3"):
            assembler.assemble(block, source)
    assert BatchAssembler(2, truncate=True).assemble(block, source)["input_ids"].tolist() == [[5, 6]]


def test_shift_inside_and_outside_the_model_give_the_same_loss():
    generator = torch.Generator().manual_seed(5)
    bins = [[(0, 4), (1, 1), (2, 3)], [(3, 6)], []]
    sequences = [torch.randint(0, 11, (n,), generator=generator) for n in (4, 1, 3, 6)]
    unshifted, shifted = (
        BatchAssembler(9, shift_labels=shift).assemble(block_of(bins), IndexableSource(sequences)) for shift in (0, 1)
    )
    logits = torch.randn(3, 9, 11, generator=generator, dtype=torch.float64)
    cross_entropy = torch.nn.functional.cross_entropy
    inside = cross_entropy(logits[:, :-1].flatten(0, 1), unshifted["labels"][:, 1:].flatten(), reduction="sum")
    outside = cross_entropy(logits.flatten(0, 1), shifted["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(inside, outside)

    alone = torch.zeros((), dtype=torch.float64)
    for row, at, tokens in ((0, 0, sequences[0]), (0, 5, sequences[2]), (1, 0, sequences[3])):
        alone += cross_entropy(logits[row, at : at + len(tokens) - 1], tokens[1:], reduction="sum")
    torch.testing.assert_close(inside, alone)
    assert (shifted["labels"] != -100).sum() == sum(n - 1 for n in (4, 1, 3, 6))


def test_tensors_have_memory_of_their_own():
    tokens = np.array([1, 2, 3])
    block = block_of([[(7, 3)]])
    batch = BatchAssembler(3).assemble(block, IndexableSource({7: tokens}))
    batch["labels"].zero_()
    batch["attention_mask"].zero_()
    assert batch["input_ids"].tolist() == [[1, 2, 3]]
    for name in ("input_ids", "cu_seqlens", "ids"):
        batch[name].zero_()
    assert tokens.tolist() == [1, 2, 3]
    assert batch["layout"].cu_seqlens.tolist() == [0, 3]
    assert block.ids.tolist() == [7]
