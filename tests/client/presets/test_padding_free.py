"""The padding-free presets against the collators of transformers and TRL."""

import warnings
from itertools import chain, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from packhorse.client.presets import get_preset, padding_free_preset

MAX_SEQ_LEN = 12
KEYS = {
    "input_ids",
    "labels",
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
}
tokens = st.lists(st.integers(1, 50), min_size=1, max_size=MAX_SEQ_LEN)


def bins_of(sequences):
    """First fit, order kept."""
    bins = [[]]
    for sequence in sequences:
        if sum(map(len, bins[-1])) + len(sequence) > MAX_SEQ_LEN:
            bins.append([])
        bins[-1].append(sequence)
    return bins


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert ours[key].dtype == value.dtype, key
            assert ours[key].shape == value.shape, key
            assert torch.equal(ours[key], value), key
        else:
            assert type(ours[key]) is type(value) is int, key
            assert ours[key] == value, key


OPTIONS = [
    {
        "return_position_ids": positions,
        "return_flash_attn_kwargs": offsets,
        "return_seq_idx": seq_idx,
        "position_ids_start": start,
    }
    for positions, offsets, seq_idx, start in product((True, False), (True, False), (True, False), (0, 2))
]


@settings(max_examples=60)
@given(st.lists(tokens, min_size=1, max_size=8), st.sampled_from(OPTIONS))
def test_keys_are_those_of_the_collator_of_transformers(assemble, sequences, options):
    preset = padding_free_preset(**options)
    ours = preset.convert(assemble(bins_of(sequences), MAX_SEQ_LEN, preset))
    assert_same(ours, DataCollatorWithFlattening(**options)([{"input_ids": sequence} for sequence in sequences]))


@settings(max_examples=30)
@given(st.lists(tokens, min_size=1, max_size=8), st.data())
def test_loss_masks_are_labels_of_the_collator(assemble, sequences, data):
    masks = [data.draw(st.lists(st.integers(0, 1), min_size=len(s), max_size=len(s))) for s in sequences]
    preset = get_preset("padding-free")
    ours = preset.convert(assemble(bins_of(sequences), MAX_SEQ_LEN, preset, loss_masks=masks))
    features = [
        {"input_ids": s, "labels": [t if m else -100 for t, m in zip(s, mask, strict=True)]}
        for s, mask in zip(sequences, masks, strict=True)
    ]
    assert_same(ours, DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(features))


@settings(max_examples=60)
@given(st.lists(tokens, min_size=1, max_size=8))
def test_keys_are_those_of_the_collator_of_trl(assemble, sequences):
    preset = get_preset("trl")
    bins = bins_of(sequences)
    ours = preset.convert(assemble(bins, MAX_SEQ_LEN, preset))
    packed = [
        {"input_ids": list(chain(*one_bin)), "seq_lengths": [len(sequence) for sequence in one_bin]} for one_bin in bins
    ]
    assert_same(ours, DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(packed))


@pytest.mark.parametrize("name", ["padding-free", "trl", "open-instruct"])
def test_a_batch_without_sequences_is_one_token_that_offsets_cover(name, assemble, as_lists):
    preset = get_preset(name)
    batch = preset.convert(assemble([[], []], 8, preset, pad_token_id=9))
    assert as_lists(batch) == {
        "input_ids": [[9]],
        "labels": [[-100]],
        "position_ids": [[0]],
        "seq_idx": [[0]],
        "cu_seq_lens_q": [0, 1],
        "cu_seq_lens_k": [0, 1],
        "max_length_q": 1,
        "max_length_k": 1,
    }
    assert batch.keys() == KEYS


@pytest.mark.parametrize("name", ["padding-free", "trl", "open-instruct"])
def test_positions_that_continue_are_refused(name, assemble):
    """A piece that begins at position 3 behind a sequence of 3 tokens would be read as its continuation."""
    preset = get_preset(name)
    batch = assemble([[[1, 2, 3], [4, 5]]], 8, preset)
    batch["position_ids"][0, 3:] += 3
    with pytest.raises(ValueError, match="leave continue_positions=False"):
        preset.convert(batch)
    assert "position_ids" not in padding_free_preset(return_position_ids=False).convert(batch)


def test_a_negative_first_position_is_refused():
    with pytest.raises(ValueError, match="position_ids_start must be at least 0, got -1"):
        padding_free_preset(position_ids_start=-1)


def test_one_long_row_without_flash_attention_is_warned_of(make_dataset, monkeypatch):
    installed = set()
    monkeypatch.setattr("packhorse.client.presets.preset.find_spec", lambda name: name in installed or None)
    for name in ("padding-free", "trl", "open-instruct"):
        with pytest.warns(
            UserWarning, match=rf'{name}.* all 8 bins.* 8 times .*flash-attn.*preset="rows".*batch_size=1'
        ):
            make_dataset(preset=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_dataset(preset="padding-free", batch_size=1)
        make_dataset(preset="rows")
        make_dataset(preset="megatron")
        with monkeypatch.context() as patch:  # a package may be a stub without a spec, which find_spec refuses
            patch.setattr("packhorse.client.presets.preset.find_spec", lambda name: pytest.fail(name))
            make_dataset(preset="rows")
            make_dataset(preset="padding-free", batch_size=1)
        installed.add("flash_attn")
        make_dataset(preset="padding-free")
