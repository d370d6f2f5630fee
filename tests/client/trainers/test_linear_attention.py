"""Models that go on from token to token: the answer of `sees_other_sequences` is that of a sequence run alone.

Without their CUDA kernels some of them see what is before, and some refuse packed rows; the table in
client/guides/masks.md says which, and is compared with this.
"""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from packhorse.client import sees_other_sequences

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = SIZES | {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
MAMBA2 = HEADS | {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
DELTA = HEADS | {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
NO_KERNELS = {"mamba_d_state": 8, "use_mamba_kernels": False}
SEES = {
    "mamba": SIZES | {"state_size": 8},
    "mamba2": SIZES | {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "falcon_mamba": SIZES | {"state_size": 8},
    "jamba": HEADS | NO_KERNELS | LOCAL_EXPERTS | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": HEADS | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
    "rwkv": SIZES | {"attention_hidden_size": 32, "intermediate_size": 48},
    "minimax": HEADS | LOCAL_EXPERTS | {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
    "xlstm": SIZES | {"num_heads": 2, "chunk_size": 8, "mode": "train"},
}
REFUSES = {
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "zamba": HEADS | NO_KERNELS | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": HEADS | NO_KERNELS | {"n_mamba_heads": 4, "chunk_size": 8, "layers_block_type": ["mamba", "hybrid"]},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
    "granitemoehybrid": MAMBA2
    | LOCAL_EXPERTS
    | {"shared_intermediate_size": 16, "layer_types": ["mamba", "attention"]},
    "nemotron_h": HEADS
    | {"layers_block_type": ["mamba", "attention"], "ssm_state_size": 8, "mamba_num_heads": 4, "head_dim": 16}
    | {"mamba_head_dim": 16, "n_groups": 1, "chunk_size": 8, "use_mamba_kernels": False},
    "qwen3_next": DELTA | EXPERTS | {"shared_expert_intermediate_size": 16, "head_dim": 16},
    "qwen3_5_text": DELTA | {"head_dim": 16},
    "olmo_hybrid": DELTA,
    "lfm2": HEADS | {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": HEADS | EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
}
LENGTH = 8
POSITIONS = torch.arange(LENGTH).repeat(2)[None]
OFFSETS = torch.tensor([0, LENGTH, 2 * LENGTH], dtype=torch.int32)
PADDING_FREE = {
    "position_ids": POSITIONS,
    "seq_idx": torch.arange(2, dtype=torch.int32).repeat_interleave(LENGTH)[None],
    "cu_seq_lens_q": OFFSETS,
    "cu_seq_lens_k": OFFSETS,
    "max_length_q": LENGTH,
    "max_length_k": LENGTH,
}


def make_model(name):
    torch.manual_seed(3)
    config = AutoConfig.for_model(name, **(SEES | REFUSES)[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for weights in model.parameters():
        if weights.ndim >= 2:
            torch.nn.init.normal_(weights, std=0.2)
    return model


def differs_from_alone(model, inputs):
    """Whether the second sequence's logits in a row of two are others than those it has by itself."""
    first, second = torch.arange(3, 3 + LENGTH)[None], torch.arange(10, 10 + LENGTH)[None]
    with torch.no_grad():
        packed = model(input_ids=torch.cat([first, second], 1), use_cache=False, **inputs).logits[:, LENGTH:]
        alone = model(input_ids=second, use_cache=False).logits
    return not torch.allclose(packed, alone, atol=1e-4)


@pytest.mark.parametrize("preset", ["rows", "padding-free"])
@pytest.mark.parametrize("name", SEES)
def test_models_that_see_other_sequences_whatever_they_are_given(name, preset):
    model = make_model(name)
    assert differs_from_alone(model, PADDING_FREE)
    assert sees_other_sequences(model, preset)


@pytest.mark.parametrize("name", REFUSES)
def test_models_that_refuse_packed_rows_without_their_kernels(name):
    """With `position_ids` alone they see what is before, without an error; the presets give what makes them refuse."""
    if torch.cuda.is_available():
        pytest.skip("the kernels may be there")
    model = make_model(name)
    assert differs_from_alone(model, {"position_ids": POSITIONS})
    with pytest.raises(ValueError, match="keep packed sequences apart"):
        differs_from_alone(model, PADDING_FREE)
    for preset in ("rows", "padding-free"):
        with pytest.raises(ValueError, match="keep packed sequences apart"):
            sees_other_sequences(model, preset)


def test_the_guide_has_the_table():
    guide = Path(__file__).parents[3] / "client" / "guides" / "masks.md"
    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (leaks|refuses) ", guide.read_text(encoding="utf-8"), re.MULTILINE)
    verdicts = {name: verdict for names, verdict in table for name in re.findall(r"\w+", names)}
    assert verdicts == dict.fromkeys(SEES, "leaks") | dict.fromkeys(REFUSES, "refuses")
