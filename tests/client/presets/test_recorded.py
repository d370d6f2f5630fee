"""Presets against what their consumers made of the same sequences; see tests/golden/consumers/record.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from packhorse.client.masks import build_boolean_mask
from packhorse.client.presets import get_preset

FOLDER = Path(__file__).parents[2] / "golden/consumers"


@pytest.fixture(scope="module")
def recorded():
    return {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}


@pytest.fixture(scope="module")
def convert(assemble):
    """Function: a preset's batch of the sequences that a file was recorded with."""

    def make(name, record):
        preset = get_preset(name)
        return preset.convert(assemble(record["bins"], record["max_seq_len"], preset))

    return make


def test_every_record_is_compared(recorded):
    assert set(recorded) == {"grain", "llama_factory", "maxtext", "megatron", "open_instruct", "torchtune"}
    shapes = {json.dumps([record["bins"], record["max_seq_len"]]) for record in recorded.values()}
    assert len(shapes) == 1


def test_open_instruct(recorded, convert, as_lists):
    record = recorded["open_instruct"]
    batch = convert("open-instruct", record)
    assert as_lists(batch) == record["batch"]
    assert {key: str(value.dtype) for key, value in batch.items() if torch.is_tensor(value)} == record["dtypes"]


@pytest.mark.parametrize("name", ["torchtune", "torchtune-0.6"])
def test_torchtune(name, recorded, convert, as_lists):
    batch = convert(name, recorded["torchtune"])
    assert as_lists(batch) == recorded["torchtune"][name]
    assert {
        tensor.dtype for tensor in [*batch["seq_lens"], *(batch[k] for k in ("tokens", "labels", "input_pos"))]
    } == {torch.int64}


def test_llama_factory(recorded, convert, as_lists):
    record = recorded["llama_factory"]
    batch = convert("llama-factory", record)
    assert as_lists(batch) == record["batch"]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_torchtune_makes_the_mask_of_the_layout(recorded, assemble):
    record = recorded["torchtune"]
    batch = assemble(record["bins"], record["max_seq_len"])
    assert build_boolean_mask(batch, "cpu", causal=True, head_dim=False).int().tolist() == record["mask"]


def test_llama_factory_makes_the_masks_of_the_layout(recorded, assemble):
    """The mask of four dimensions, and the offsets and indices that its FlashAttention path reads from the labels."""
    record = recorded["llama_factory"]
    batch = assemble(record["bins"], record["max_seq_len"] + 1)
    mask = build_boolean_mask(batch, "cpu", causal=True, head_dim=False, mask_padding=True)
    assert mask.int().tolist() == record["mask"]
    layout = batch["layout"]
    assert record["cu_seqlens"] == layout.cu_seqlens.tolist()
    assert record["max_seqlen"] == layout.max_seqlen
    tokens = [np.arange(a, a + n) for a, n in zip(layout.starts, layout.lengths, strict=True)]
    assert record["indices"] == np.concatenate(tokens).tolist()


def test_grain(recorded, convert, as_lists):
    record = recorded["grain"]
    batch = convert("jax", record)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    ours, theirs = as_lists(batch), record["batch"]
    assert ours.keys() == theirs.keys()
    segment_ids, weights = np.array(theirs["targets_segment_ids"]), batch["targets"] != 0
    assert ours.pop("targets_segment_ids") == np.where(weights, segment_ids, 0).tolist()
    assert theirs.pop("targets_segment_ids")
    for key in ("inputs", "inputs_segment_ids", "inputs_positions", "targets"):
        assert ours[key] == theirs[key], key
    assert ours["targets_positions"] == theirs["targets_positions"]


def test_maxtext(recorded, convert, as_lists):
    """MaxText has the last token of a sequence predict the next one's first; ours leaves that out, and only that."""
    record = recorded["maxtext"]
    ours, theirs = as_lists(convert("maxtext", record)), record["batch"]
    assert ours.keys() == theirs.keys()
    for key in ("inputs", "inputs_segmentation", "inputs_position", "targets_position"):
        assert ours[key] == theirs[key], key
    differing = []
    for row, one_bin in enumerate(record["bins"]):
        ends = np.cumsum([len(tokens) for tokens in one_bin])
        for column in range(record["max_seq_len"]):
            ours_here, theirs_here = (
                (batch["targets"][row][column], batch["targets_segmentation"][row][column]) for batch in (ours, theirs)
            )
            if ours_here != theirs_here:
                assert ours_here == (0, 0)
                assert column + 1 in ends[:-1]
                differing.append((row, column))
    assert differing == [(0, 2), (2, 3)]


def test_megatron(recorded, convert, as_lists):
    record = recorded["megatron"]
    batch = convert("megatron", record)
    params = {name: batch[name] for name in batch if name in record["packed_seq_params"]}
    assert set(record["packed_seq_params"]) - set(params) == {"local_cp_size", "cp_group"}
    assert set(batch) - set(params) == {"tokens", "labels", "loss_mask", "position_ids", "padding_mask"}
    assert as_lists(batch["labels"]) == record["labels"]

    losses = torch.tensor(record["losses"])
    assert losses.isfinite().all()
    assert batch["loss_mask"].dtype == torch.float32
    vocab_size = record["vocab_size"]
    logits = torch.arange(losses.numel() * vocab_size, dtype=torch.float32).sin().view(-1, vocab_size)
    alone = sum(
        torch.nn.functional.cross_entropy(logits[at : at + len(tokens) - 1], torch.tensor(tokens[1:]), reduction="sum")
        for row, one_bin in enumerate(record["bins"])
        for at, tokens in zip(np.cumsum([row * 8, *map(len, one_bin[:-1])]).tolist(), one_bin, strict=True)
        if len(tokens) > 1
    )
    torch.testing.assert_close((losses * batch["loss_mask"]).sum(), alone)
