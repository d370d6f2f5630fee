"""`cost_linear_of` against FLOPs counted by PyTorch on real models, and against the numbers of the field."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
)

from packhorse.client import cost_linear_of


def small(kind, **options):
    return kind(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        attn_implementation="eager",
        **options,
    )


def counted(model):
    """cost_linear by least squares from the FLOPs of three lengths: cost = a · (c · L + L²)."""
    lengths = torch.tensor([64.0, 256.0, 768.0], dtype=torch.float64)
    flops = []
    for length in lengths.int().tolist():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, length, dtype=torch.long), use_cache=False)
        flops.append(counter.get_total_flops())
    columns = torch.stack([lengths, lengths**2], dim=1)
    linear, square = torch.linalg.lstsq(columns, torch.tensor(flops, dtype=torch.float64)).solution.tolist()
    return linear / square


@pytest.mark.parametrize(
    "model",
    [
        lambda: LlamaForCausalLM(small(LlamaConfig)),
        lambda: LlamaForCausalLM(small(LlamaConfig, head_dim=32)),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=64, n_layer=3, n_head=4, attn_implementation="eager")),
    ],
    ids=["llama", "llama-wide-heads", "gpt2"],
)
def test_the_formula_is_what_a_real_model_computes(model):
    model = model()
    assert cost_linear_of(model) == cost_linear_of(model.config)
    assert cost_linear_of(model) == pytest.approx(counted(model), rel=0.01)


def test_six_times_the_hidden_size_for_a_plain_transformer():
    config = SimpleNamespace(
        hidden_size=4096, intermediate_size=4 * 4096, num_hidden_layers=32, num_attention_heads=32, vocab_size=0
    )
    assert cost_linear_of(config) == 24_576


def test_experts_count_where_a_token_visits_them():
    dense = cost_linear_of(small(LlamaConfig))
    sparse = cost_linear_of(small(MixtralConfig, num_local_experts=8, num_experts_per_tok=2))
    feed_forward = 3 * 64 * 160 + 8 * 64 / 1
    assert sparse - dense == pytest.approx(2 * feed_forward / (4 * 64), abs=3)


def test_a_sliding_window_is_linear_in_the_length():
    full = cost_linear_of(small(MistralConfig, sliding_window=None))
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    mixed = cost_linear_of(small(Qwen2Config, use_sliding_window=True, sliding_window=512, layer_types=kinds))
    assert mixed == pytest.approx(1.5 * full + 512 / 2, abs=1)
    assert cost_linear_of(small(MistralConfig, sliding_window=512)) == 1 << 31
    assert cost_linear_of(small(Qwen2Config, use_sliding_window=False, sliding_window=512)) == full


def test_configs_of_other_shapes():
    gemma = Gemma2Config()
    nested = SimpleNamespace(text_config=gemma)
    assert cost_linear_of(nested) == cost_linear_of(gemma) > 6 * gemma.hidden_size
    deepseek = DeepseekV3Config()
    weights_of_attention = 1536 * (7168 + 128 * 192) + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    experts = 7168 * 9 * 2048 * 3 + 7168 * 256
    weights = 61 * weights_of_attention + 3 * 7168 * 18432 * 3 + 58 * experts + 7168 * deepseek.vocab_size
    assert cost_linear_of(deepseek) == pytest.approx(2 * weights / (61 * 2 * 128 * (192 + 128)), rel=1e-3)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="SimpleNamespace has no num_hidden_layers or n_layer"):
        cost_linear_of(SimpleNamespace(hidden_size=64))
