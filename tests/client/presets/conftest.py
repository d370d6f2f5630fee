"""What tests of presets share: batches of chosen sequences, and a small model."""

import numpy as np
import pytest
import torch

from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.sources import IndexableSource
from packhorse.client.streams.blocks import BinBlock


@pytest.fixture(scope="session")
def assemble():
    """Function: a PackedBatch of bins of token lists, in the form of a preset or with the options of BatchAssembler."""

    def make(bins, max_seq_len, preset=None, *, loss_masks=None, align=1, **options):
        sequences = [tokens for one_bin in bins for tokens in one_bin]
        block = BinBlock(
            ids=np.arange(len(sequences)),
            lengths=np.array([-(-len(tokens) // align) * align for tokens in sequences], np.int32),
            bin_ends=np.cumsum([len(one_bin) for one_bin in bins], dtype=np.int64),
            positions=np.arange(len(bins)),
        )
        if preset is not None:
            options = {"shift_labels": preset.shift_labels, "flatten": preset.flatten} | options
        assembler = BatchAssembler(max_seq_len, align=align, **options)
        loss_mask = None if loss_masks is None else IndexableSource(loss_masks)
        return assembler.assemble(block, IndexableSource(sequences), loss_mask=loss_mask)

    return make


@pytest.fixture(scope="session")
def as_lists():
    """Function: a dict of tensors, arrays, lists of them and numbers as plain values."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value

    return plain


@pytest.fixture(scope="session", params=["eager", "sdpa"])
def model(request):
    """A small Llama of transformers with random weights in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        attn_implementation=request.param,
    )
    return LlamaForCausalLM(config).eval()
