"""Totals that are multiples, offsets of one size, and what parallelism and number formats ask for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client import BatchFormat, MemoryDatasets, PackedDataset
from packhorse.client.presets import (
    alignment_for,
    get_preset,
    megatron_lm_preset,
    megatron_preset,
    padding_free_preset,
)
from packhorse.packing import pack_sequences

BINS = [[[1, 2, 3], [4, 5]], [[6, 7, 8, 9]], [], [[14]]]
LENGTHS = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4)


@given(LENGTHS, st.sampled_from([1, 16, 32, 48 * 4]), st.booleans())
def test_one_padding_makes_the_total_a_multiple(assemble, lengths, multiple, is_static):
    preset = padding_free_preset(
        total_multiple_of=multiple, max_sequences=16 if is_static else None, return_padding_mask=True
    )
    bins = [[[7] * n for n in one_bin] for one_bin in lengths]
    plain = assemble(bins, 48, get_preset("padding-free"))
    batch = preset.convert(assemble(bins, 48, preset, total_multiple_of=multiple, pad_token_id=99))
    num_tokens, total = sum(map(sum, lengths)), batch["input_ids"].shape[1]
    assert total % multiple == 0
    assert total - num_tokens < multiple or num_tokens == 0
    assert batch["padding_mask"].tolist() == [[False] * num_tokens + [True] * (total - num_tokens)]
    for key in ("input_ids", "labels", "position_ids", "seq_idx"):
        assert batch[key].shape == (1, total)
        if num_tokens:
            assert torch.equal(batch[key][0, :num_tokens], plain[f"{'sequence_ids' if key == 'seq_idx' else key}"][0])
    assert batch["input_ids"][0, num_tokens:].eq(99).all()
    assert batch["labels"][0, num_tokens:].eq(-100).all()
    assert batch["position_ids"][0, num_tokens:].tolist() == list(range(total - num_tokens))
    segments = batch["cu_seq_lens_q"].diff()
    held = [*(n for one_bin in lengths for n in one_bin), *([total - num_tokens] if total > num_tokens else [])]
    assert segments[segments > 0].tolist() == held
    assert batch["cu_seq_lens_q"][-1] == total
    assert batch["max_length_q"] >= max(held)
    if is_static:
        assert (len(batch["cu_seq_lens_q"]), batch["max_length_q"]) == (18, total)


def test_a_field_of_the_format_does_it_for_any_flat_preset(assemble):
    form = BatchFormat(preset="trl", total_multiple_of=16)
    batch = form.preset.convert(assemble(BINS, 8, **form.rows()))
    assert batch["input_ids"].shape == (1, 16)
    both = BatchFormat(preset=padding_free_preset(total_multiple_of=6), total_multiple_of=4)
    assert both.rows()["total_multiple_of"] == both.preset.total_multiple_of == 12
    with pytest.raises(ValueError, match=r"flatten=True and total_multiple_of=12"):
        both.preset.convert(assemble(BINS, 8, flatten=True))


def test_fp8_padding_once_and_for_each_sequence():
    """Rows of 32,768 tokens, of lognormal documents with a mean of 800: what multiples of 128 cost."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(800) - 0.5, 1, 40_000), 1, 32_768).astype(np.int64)
    rooms = -(-lengths // 128) * 128
    assert (rooms - lengths).sum() / lengths.sum() == pytest.approx(0.079, abs=0.004)
    packed = pack_sequences(lengths, 32_768, algorithm="best-fit")
    totals = np.array([lengths[one_bin].sum() for one_bin in packed.bins()])
    assert totals.sum() == lengths.sum()
    assert (-totals % 128).sum() / totals.sum() < 0.004


@pytest.mark.parametrize(
    ("recipe", "tp", "cp", "sequence", "total"),
    [
        ("bf16", 1, 1, 1, 1),
        ("blockwise", 1, 1, 1, 128),
        ("mxfp8", 4, 1, 4, 128),
        ("delayed", 1, 2, 4, 32),
        ("tensorwise", 2, 4, 8, 128),
        ("blockwise", 1, 3, 6, 384),
    ],
)
def test_two_scopes_of_alignment(recipe, tp, cp, sequence, total):
    assert alignment_for(recipe, tp, cp) == (sequence, total)


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "mxfp8"])
def test_totals_are_what_megatron_asks_for(recipe):
    enums = pytest.importorskip("megatron.core.enums")
    fp8_utils = pytest.importorskip("megatron.core.fp8_utils")
    assert alignment_for(recipe).total == fp8_utils.get_fp8_align_size(enums.Fp8Recipe(recipe))


@pytest.mark.filterwarnings("ignore:preset 'padding-free' lays all")
@pytest.mark.parametrize(
    ("preset", "batch_size", "match"),
    [
        (padding_free_preset(max_sequences=3), 2, r"max_sequences 3, but .*largest bins need 4: 2 bins of 2 seq"),
        (megatron_preset(num_sequences=5), 2, r"num_sequences 5, but .* need 6: 2 bins of 2 .* each row; take num_s"),
        (
            megatron_lm_preset(max_sequences=1),
            2,
            r"max_sequences 1, but .* need 2: 1 bin of 2 .*; take max_sequences=2",
        ),
    ],
)
def test_a_plan_with_larger_bins_is_refused_before_the_first_batch(preset, batch_size, match):
    # One bin alone has two sequences: most steps would fit.
    lengths = [8] * 6 + [5, 3]
    memory, tokens = MemoryDatasets({"a": lengths}, max_seq_len=8), [np.arange(n) for n in lengths]
    dataset = PackedDataset(memory, "a", tokens, batch_size=batch_size, preset=preset, rank=(0, 1))
    with pytest.raises(ValueError, match=match):
        next(iter(dataset))


def test_more_sequences_than_offsets_are_refused_at_the_step_too(assemble):
    preset = padding_free_preset(max_sequences=2)
    with pytest.raises(ValueError, match=r"4 sequences, more than max_sequences 2.*max_sequences_per_bin"):
        preset.convert(assemble(BINS, 8, preset))
