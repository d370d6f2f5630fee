"""Separators, loss masks, flattened rows, places and pieces together, against an oracle that goes token by token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.batches.buffers import BatchBuffers
from packhorse.client.batches.row_format import Separators
from packhorse.client.sources import IndexableSource, TokenSourceError
from packhorse.client.streams.blocks import BinBlock

PAD, BOS, EOS = 90, 91, 92
SEPARATORS = {
    "none": Separators(),
    "eos_bos": Separators.eos_bos(bos_token_id=BOS, eos_token_id=EOS),
    "separator_only": Separators.separator_only(separator_token_id=EOS),
}
KEYS = ("input_ids", "labels", "sequence_ids", "position_ids", "attention_mask")


@st.composite
def cases(draw):
    """Bins of (id, start, tokens taken, place), whole sequences and masks by id, and the options of the plan."""
    align, extra = draw(st.sampled_from([(1, 0), (1, 2), (4, 0), (4, 2), (8, 3)]))
    name = draw(st.sampled_from([name for name, s in SEPARATORS.items() if s.num_tokens <= extra]))
    max_seq_len = draw(st.integers(2 * align + extra, 40))
    longest = max_seq_len // align * align - extra
    bins, sequences, masks = [], {}, {}
    for _ in range(draw(st.integers(1, 4))):
        one_bin, free = [], max_seq_len
        for taken in draw(st.lists(st.integers(1, longest), max_size=5)):
            place = -(-(taken + extra) // align) * align
            if place > free:
                continue
            sequence_id, start = 10 * len(sequences), draw(st.integers(0, 3))
            left = taken if taken < longest else longest + draw(st.integers(0, 3))
            size = start + left
            sequences[sequence_id] = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
            masks[sequence_id] = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
            one_bin.append((sequence_id, start, taken, place))
            free -= place
        bins.append(one_bin)
    return max_seq_len, align, extra, name, bins, sequences, masks


def block_of(bins):
    flat = [entry for one_bin in bins for entry in one_bin]
    return BinBlock(
        ids=np.array([i for i, *_ in flat], np.int64),
        lengths=np.array([place for *_, place in flat], np.int32),
        bin_ends=np.cumsum([len(one_bin) for one_bin in bins], dtype=np.int64),
        positions=np.arange(len(bins)),
        first_tokens=np.array([start for _, start, _, _ in flat], np.int64),
    )


def oracle(case, *, shift, flatten, masked, continue_positions):
    max_seq_len, _, _, name, bins, sequences, masks = case
    separators = SEPARATORS[name]
    rows, lengths = [], []
    for one_bin in bins:
        row, free = [], len(one_bin) + 1
        for label, (sequence_id, start, taken, place) in enumerate(one_bin):
            tokens = sequences[sequence_id][start : start + taken]
            mask = masks[sequence_id][start : start + taken] if masked else [1] * taken
            if separators.bos_token_id is not None and start == 0:
                tokens, mask = [BOS, *tokens], [0, *mask]
            if separators.eos_token_id is not None and start + taken == len(sequences[sequence_id]):
                tokens, mask = [*tokens, EOS], [*mask, mask[-1]]
            mask[0] = 0
            targets = [token if wanted else -100 for token, wanted in zip(tokens, mask, strict=True)]
            if shift:
                targets = [*targets[1:], -100]
            first = start + (start > 0 and separators.bos_token_id is not None) if continue_positions else 0
            lengths.append(len(tokens))
            row += [
                (token, target, label, first + t, 1)
                for t, (token, target) in enumerate(zip(tokens, targets, strict=True))
            ]
            if not flatten:
                row += [(PAD, -100, free, first + t, 0) for t in range(len(tokens), place)]
                free += len(tokens) < place
        if not flatten:
            row += [(PAD, -100, len(one_bin), p, 0) for p in range(max_seq_len - len(row))]
        rows.append(row)
    if flatten:
        numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
        flat = [entry for row in rows for entry in row]
        rows = [[(token, label, n, p, m) for (token, label, _, p, m), n in zip(flat, numbers, strict=True)]]
        if not lengths:  # one token of padding, which variable-length attention sees as a sequence
            rows, lengths = [[(PAD, -100, 0, 0, 0)]], [1]
    batch = {key: [[entry[k] for entry in row] for row in rows] for k, key in enumerate(KEYS)}
    batch |= {"cu_seqlens": np.cumsum([0, *lengths]).tolist(), "max_seqlen": max(lengths, default=0)}
    return batch | {"shift_labels": shift}


@settings(max_examples=300)
@given(cases(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_assembly_equals_the_oracle(case, shift, flatten, masked, continue_positions):
    max_seq_len, align, extra, name, bins, sequences, masks = case
    assembler = BatchAssembler(
        max_seq_len,
        pad_token_id=PAD,
        separators=SEPARATORS[name],
        shift_labels=shift,
        flatten=flatten,
        truncate=True,
        align=align,
        extra_tokens=extra,
        continue_positions=continue_positions,
    )
    mask = IndexableSource(masks) if masked else None
    batch = assembler.assemble(block_of(bins), IndexableSource(sequences), loss_mask=mask)
    layout, ids = batch.pop("layout"), batch.pop("ids")
    assert ids.tolist() == [sequence_id for one_bin in bins for sequence_id, *_ in one_bin]
    found = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    assert found == oracle(case, shift=shift, flatten=flatten, masked=masked, continue_positions=continue_positions)
    assert layout.sequence_ids().tolist() == found["sequence_ids"]
    assert layout.cu_seqlens.tolist() == (found["cu_seqlens"] if any(bins) else [0])


def test_separators_need_room_in_the_plan():
    with pytest.raises(ValueError, match=r"up to 2 tokens.*extra_tokens 1; prepare it with extra_tokens=2"):
        BatchAssembler(8, extra_tokens=1, separators=SEPARATORS["eos_bos"])
    with pytest.raises(ValueError, match=r"bos_token_id must be an integer in \[0, 2\^31\), got -1"):
        Separators(bos_token_id=-1)


def test_a_loss_mask_of_another_length_is_refused_with_both_lengths():
    block = block_of([[(0, 0, 3, 3)]])
    with pytest.raises(TokenSourceError, match=r"sequence 0: the loss mask in the list holds 2 values for its 3"):
        BatchAssembler(4).assemble(block, IndexableSource([[1, 2, 3]]), loss_mask=IndexableSource([[1, 1]]))
    whole = replace(block, first_tokens=None)
    with pytest.raises(TokenSourceError, match=r"sequence 0: the plan says 3 tokens, the source holds 2"):
        BatchAssembler(4).assemble(whole, IndexableSource([[1, 2, 3]]), loss_mask=IndexableSource([[1, 1]]))


def test_buffers_hold_one_batch_after_the_other():
    blocks = [block_of([[(0, 0, 3, 3)], []]), block_of([[(1, 0, 2, 2)]])]
    source = IndexableSource([[1, 2, 3], [4, 5]])
    assembler, buffers = BatchAssembler(4, pad_token_id=PAD), BatchBuffers(8)
    alone = [assembler.assemble(block, source) for block in blocks]
    first = assembler.assemble(blocks[0], source, buffers=buffers)
    assert all(torch.equal(first[key], alone[0][key]) for key in KEYS)
    second = assembler.assemble(blocks[1], source, buffers=buffers)
    assert all(torch.equal(second[key], alone[1][key]) for key in KEYS)
    assert second["input_ids"].data_ptr() == first["input_ids"].data_ptr()
    with pytest.raises(ValueError, match="batch of 12 tokens does not fit buffers for 8"):
        assembler.assemble(block_of([[], [], []]), source, buffers=buffers)


@pytest.mark.gpu
def test_pinned_batches():
    batch = BatchAssembler(4, pin_memory=True).assemble(block_of([[(0, 0, 3, 3)]]), IndexableSource([[1, 2, 3]]))
    assert all(batch[key].is_pinned() for key in KEYS)
