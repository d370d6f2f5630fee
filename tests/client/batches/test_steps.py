"""Batches of several steps at once against each batch alone."""

import numpy as np
import pytest
import torch

from packhorse.client import BatchAssembler, BinBlock, Separators, TokenSource
from packhorse.client.sources import FlatSource, IndexableSource, TokenSourceError
from packhorse.formats import write_flat_tokens
from packhorse.packing import pack_sequences

MAX_SEQ_LEN = 24


@pytest.fixture
def sequences():
    random = np.random.default_rng(3)
    return [random.integers(0, 60_000, size=length) for length in random.integers(1, MAX_SEQ_LEN - 1, size=300)]


def block_of(sequences, extra_tokens=0, num_empty=0):
    """All sequences in bins, some bins without any, first and last among them."""
    rooms = np.array([len(tokens) for tokens in sequences]) + extra_tokens
    bins = pack_sequences(rooms, MAX_SEQ_LEN, seed=1).bins()
    for at in np.linspace(0, len(bins), num_empty).astype(int).tolist():
        bins.insert(at, [])
    ids = np.concatenate([np.array(one_bin, np.int64) for one_bin in bins])
    ends = np.cumsum([len(one_bin) for one_bin in bins])
    return BinBlock(ids=ids, lengths=rooms[ids].astype(np.int32), bin_ends=ends, positions=np.arange(len(bins)))


def as_lists(batch):
    lists = {key: (value.dtype, value.tolist()) for key, value in batch.items() if isinstance(value, torch.Tensor)}
    return lists | {"max_seqlen": batch["max_seqlen"]}


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"flatten": True, "shift_labels": True},
        {"extra_tokens": 2, "separators": Separators.eos_bos(bos_token_id=1, eos_token_id=2)},
        {"extra_tokens": 1, "separators": Separators.separator_only(separator_token_id=2), "flatten": True},
        {"truncate": True, "pad_token_id": 70_000},
    ],
    ids=["plain", "flat", "separators", "flat-separators", "truncated"],
)
def test_steps_at_once_are_the_steps_alone(tmp_path, sequences, options, is_mapped):
    source, mask = IndexableSource(sequences), IndexableSource([tokens % 2 for tokens in sequences])
    if is_mapped:
        write_flat_tokens(tmp_path / "tokens.bin", sequences, np.uint16)
        source = FlatSource(tmp_path / "tokens.bin")
    assembler = BatchAssembler(MAX_SEQ_LEN, **options)
    block = block_of(sequences, options.get("extra_tokens", 0), num_empty=5)
    for batch_size, loss_mask in ((3, None), (1, mask), (len(block) - 1, None)):
        together = list(assembler.assemble_steps(block, source, batch_size=batch_size, loss_mask=loss_mask))
        alone = [
            assembler.assemble(block.slice(first, min(first + batch_size, len(block))), source, loss_mask=loss_mask)
            for first in range(0, len(block), batch_size)
        ]
        assert [as_lists(batch) for batch in together] == [as_lists(batch) for batch in alone]
        assert [batch["layout"] for batch in together] == [batch["layout"] for batch in alone]


def test_pieces_of_sequences(tmp_path, sequences):
    write_flat_tokens(tmp_path / "tokens.bin", sequences, np.uint16)
    source = FlatSource(tmp_path / "tokens.bin")
    firsts = np.array([len(tokens) // 2 for tokens in sequences])  # each begins in its middle
    ends = np.arange(1, len(sequences) + 1)
    block = BinBlock(
        ids=ends - 1,
        lengths=np.array([len(tokens) for tokens in sequences], np.int32) - firsts.astype(np.int32),
        bin_ends=ends,
        positions=ends - 1,
        first_tokens=firsts,
    )
    assembler = BatchAssembler(MAX_SEQ_LEN, truncate=True, continue_positions=True)
    together = list(assembler.assemble_steps(block, source, batch_size=2))
    alone = [assembler.assemble(block.slice(i, i + 2), source) for i in range(0, len(block), 2)]
    assert len(together) == 150
    assert [as_lists(batch) for batch in together] == [as_lists(batch) for batch in alone]


def test_a_batch_does_not_wait_for_the_tokens_of_the_next(sequences):
    read = []

    class Counted(TokenSource):
        def read(self, sequence_id, start=0, length=None):
            read.append(sequence_id)
            return sequences[sequence_id][start:]

    block = block_of(sequences)
    batches = BatchAssembler(MAX_SEQ_LEN).assemble_steps(block, Counted(), batch_size=2)
    next(batches)
    assert read == block.slice(0, 2).ids.tolist()


def test_a_wrong_sequence_is_refused_at_its_batch(tmp_path, sequences):
    block = block_of(sequences)
    wrong = int(block.slice(6, 7).ids[0])
    sequences[wrong] = np.append(sequences[wrong], 5)
    write_flat_tokens(tmp_path / "tokens.bin", sequences, np.uint16)
    batches = BatchAssembler(MAX_SEQ_LEN).assemble_steps(block, FlatSource(tmp_path / "tokens.bin"), batch_size=2)
    for _ in range(3):
        next(batches)
    with pytest.raises(TokenSourceError, match=f"sequence {wrong}: the plan says"):
        next(batches)


def test_batches_share_no_memory(sequences):
    block = block_of(sequences)
    assembler, source = BatchAssembler(MAX_SEQ_LEN), IndexableSource(sequences)
    first, second, *_ = assembler.assemble_steps(block, source, batch_size=2)
    expected = as_lists(second)
    for value in first.values():
        if isinstance(value, torch.Tensor):
            value.fill_(-1)
    assert as_lists(second) == expected
    assert first["layout"] == assembler.assemble(block.slice(0, 2), source)["layout"]
    assert block.ids.min() == 0


def test_no_bins_are_no_batches_and_a_size_below_one_is_refused(sequences):
    block, source = block_of(sequences), IndexableSource(sequences)
    assembler = BatchAssembler(MAX_SEQ_LEN)
    assert list(assembler.assemble_steps(block.slice(0, 0), source, batch_size=2)) == []
    with pytest.raises(ValueError, match="batch_size must be at least 1, got -1"):
        next(assembler.assemble_steps(block, source, batch_size=-1))
