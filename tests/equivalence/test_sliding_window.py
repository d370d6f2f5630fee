"""Layers with a sliding window: a gpt-oss gives every packed sequence the logits and gradients that it has alone.

It has layers of both kinds and makes its masks without `position_ids`, so both are given to it.
"""

import numpy as np
import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_packing_attention_bias

WINDOW = 4
LENGTHS = [9, 3, 4, 1, 15]
"""Of sequences in two rows of 16: longer than the window, shorter, and as long."""


def make_model():
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_attention_heads": 2}
    config = GptOssConfig(
        vocab_size=61,
        num_hidden_layers=2,
        num_key_value_heads=1,
        num_local_experts=2,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        attn_implementation="eager",
        experts_implementation="eager",  # grouped ones take no float64
        **sizes,
    )
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    model = GptOssForCausalLM(config).double().train()
    for parameter in model.parameters():  # large enough that attention tells tokens apart
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def logits_and_gradients(mask_of):
    """Logits by sequence and gradients of their squares: packed with masks of a layout, or alone without any."""
    model, random = make_model(), np.random.default_rng(3)
    sequences = [torch.from_numpy(random.integers(0, 61, length)) for length in LENGTHS]
    if mask_of is None:
        parts = [model(input_ids=tokens[None], use_cache=False).logits[0] for tokens in sequences]
    else:
        layout = PackLayout.of_rows(np.array(LENGTHS), np.array([3, 5]), 16)
        tokens = torch.cat(sequences).view(2, 16)
        positions = torch.cat([torch.arange(length) for length in LENGTHS]).view(2, 16)
        logits = model(tokens, attention_mask=mask_of(layout), position_ids=positions, use_cache=False).logits
        parts = list(logits.flatten(0, 1).split(LENGTHS))
    sum(part.square().sum() for part in parts).backward()
    return parts, [parameter.grad for parameter in model.parameters()]


def masks(layout, window):
    def bias(**choices):
        return build_packing_attention_bias(layout, torch.float64, "cpu", causal=True, **choices)

    return {"full_attention": bias(), "sliding_attention": bias(window=window)}


def test_every_sequence_is_as_it_is_alone():
    packed = logits_and_gradients(lambda layout: masks(layout, WINDOW))
    torch.testing.assert_close(packed, logits_and_gradients(None))


@pytest.mark.parametrize("window", [WINDOW - 1, WINDOW + 1, None])
def test_another_window_is_noticed(window):
    packed, _ = logits_and_gradients(lambda layout: masks(layout, window))
    alone, _ = logits_and_gradients(None)
    assert not torch.allclose(packed[0], alone[0])
