"""Megatron's offsets, alignment and static shapes, and the rows that Megatron-LM's own get_batch reads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.presets import get_preset, megatron_lm_preset, megatron_preset

BINS = [[[1, 2, 3], [4, 5]], [[6, 7, 8, 9, 10, 11, 12, 13]], [], [[14]]]
LENGTHS = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4)


def padding_mask(cu_seqlens, cu_seqlens_padded):
    """Megatron's rule: of the padded segment that a token lies in, it is beyond the tokens that are held."""
    mask = []
    for i, (held, padded) in enumerate(zip(cu_seqlens.diff().tolist(), cu_seqlens_padded.diff().tolist(), strict=True)):
        assert 0 <= held <= padded, i
        mask += [0] * held + [1] * (padded - held)
    return mask


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.booleans())
def test_offsets_say_what_is_padding(assemble, lengths, align, is_static):
    max_seq_len = 48
    bins = [[[7] * n for n in one_bin] for one_bin in lengths]
    preset = megatron_preset(num_sequences=20 if is_static else None)
    plain = assemble(bins, max_seq_len, preset, align=align)
    batch = preset.convert(plain)

    cu_seqlens, cu_seqlens_padded = batch["cu_seqlens_q"], batch["cu_seqlens_q_padded"]
    assert cu_seqlens.dtype == cu_seqlens_padded.dtype == torch.int32
    assert cu_seqlens[0] == cu_seqlens_padded[0] == 0
    assert cu_seqlens_padded[-1] == batch["tokens"].numel() == len(bins) * max_seq_len
    assert padding_mask(cu_seqlens, cu_seqlens_padded) == (1 - plain["attention_mask"].flatten()).tolist()
    held = [n for n in cu_seqlens.diff().tolist() if n]
    assert held == [n for one_bin in lengths for n in one_bin]
    longest = max(cu_seqlens_padded.diff().tolist())
    assert type(batch["max_seqlen_q"]) is int
    assert batch["max_seqlen_q"] == batch["max_seqlen_kv"] == (max_seq_len if is_static else longest)
    assert torch.equal(batch["cu_seqlens_kv"], cu_seqlens)
    assert torch.equal(batch["cu_seqlens_kv_padded"], cu_seqlens_padded)
    if is_static:
        assert cu_seqlens.shape == cu_seqlens_padded.shape == (21,)


def test_keys_by_hand(assemble, as_lists):
    batch = get_preset("megatron").convert(assemble(BINS, 8, shift_labels=True, pad_token_id=99))
    assert as_lists(batch) == {
        "tokens": [[1, 2, 3, 4, 5, 99, 99, 99, 6, 7, 8, 9, 10, 11, 12, 13, *[99] * 8, 14, *[99] * 7]],
        "labels": [[2, 3, -100, 5, *[-100] * 4, 7, 8, 9, 10, 11, 12, 13, *[-100] * 17]],
        "loss_mask": [[1.0, 1.0, 0.0, 1.0, *[0.0] * 4, *[1.0] * 7, *[0.0] * 17]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1, 2, *range(8), *range(8), 0, *range(7)]],
        "qkv_format": "thd",
        "cu_seqlens_q": [0, 3, 5, 5, 13, 13, 14, 14],
        "cu_seqlens_kv": [0, 3, 5, 5, 13, 13, 14, 14],
        "cu_seqlens_q_padded": [0, 3, 5, 8, 16, 24, 25, 32],
        "cu_seqlens_kv_padded": [0, 3, 5, 8, 16, 24, 25, 32],
        "max_seqlen_q": 8,
        "max_seqlen_kv": 8,
        "padding_mask": [[False] * 5 + [True] * 3 + [False] * 8 + [True] * 8 + [False] + [True] * 7],
    }


def test_rows_by_hand(assemble, as_lists):
    """Shapes as Megatron-LM allocates them: (micro-batch, seq_length), and each row's offsets up to seq_length."""
    plain = assemble(BINS, 8, shift_labels=True, pad_token_id=99)
    batch = get_preset("megatron-lm").convert(plain)
    assert batch["tokens"] is plain["input_ids"]
    assert batch["position_ids"] is plain["position_ids"]
    assert {key: batch[key].dtype for key in ("loss_mask", "cu_seqlens", "max_seqlen")} == {
        "loss_mask": torch.float32,
        "cu_seqlens": torch.int32,
        "max_seqlen": torch.int32,
    }
    assert torch.equal(batch["loss_mask"], (plain["labels"] != -100).float())
    assert batch["cu_seqlens"].tolist() == [[0, 3, 5, 8], [0, 8, 8, 8], [0, 8, 8, 8], [0, 1, 8, 8]]
    assert batch["max_seqlen"].tolist() == [3, 8, 8, 7]
    assert torch.equal(batch["padding_mask"], plain["attention_mask"] == 0)
    static = megatron_lm_preset(max_sequences=3).convert(plain)
    assert static["cu_seqlens"].tolist() == [[0, 3, 5, 8, 8], [0, 8, 8, 8, 8], [0, 8, 8, 8, 8], [0, 1, 8, 8, 8]]
    assert static["max_seqlen"].tolist() == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("context", "tensor", "align"), [(1, 1, 1), (1, 4, 4), (2, 1, 4), (2, 2, 4), (2, 4, 8), (3, 2, 6), (2, 3, 12)]
)
def test_segments_are_multiples_of_what_parallelism_needs(context, tensor, align, assemble):
    bins = [[[1] * 5, [2] * 3], [[3]]]
    for make, offsets in ((megatron_preset, "cu_seqlens_q_padded"), (megatron_lm_preset, "cu_seqlens")):
        preset = make(context_parallel_size=context, tensor_parallel_size=tensor)
        aligned = preset.convert(assemble(bins, 48, preset, align=align))
        assert not (aligned[offsets] % align).any()
        if align > 1:
            with pytest.raises(ValueError, match=rf"segment of 5 tokens is not a multiple of {align}.*align={align}"):
                preset.convert(assemble(bins, 48, preset))
            with pytest.raises(ValueError, match=rf"not a multiple of {align}.*max_seq_len that is a multiple"):
                preset.convert(assemble(bins, 49, preset, align=align))


def test_too_many_segments_for_static_shapes_are_refused(assemble):
    assert megatron_preset(num_sequences=7).convert(assemble(BINS, 8, shift_labels=True))
    with pytest.raises(ValueError, match=r"has 7 segments, more than num_sequences 6.*max_sequences_per_bin"):
        megatron_preset(num_sequences=6).convert(assemble(BINS, 8, shift_labels=True))
    with pytest.raises(ValueError, match=r"a row has 3 segments, more than max_sequences 1 .*max_sequences_per_bin"):
        megatron_lm_preset(max_sequences=1).convert(assemble(BINS, 8, shift_labels=True))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (megatron_preset, "context_parallel_size"),
        (megatron_preset, "tensor_parallel_size"),
        (megatron_preset, "num_sequences"),
        (megatron_lm_preset, "max_sequences"),
    ],
)
def test_sizes_below_1_are_refused(make, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        make(**{name: 0})
