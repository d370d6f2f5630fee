"""Models that go on from token to token: the answer of `sees_other_sequences` is that of a sequence run alone.

Without their CUDA kernels some of them see what is before, and some refuse packed rows. With kernels it depends on what
the model passes on to them; here they are stand-ins, which take their parameters and add up what is before. The table
in client/guides/masks.md says all this, and is compared with what is found here.
"""

import multiprocessing
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from packhorse.trainers import sees_other_sequences

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = SIZES | {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
MAMBA2 = HEADS | {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
DELTA = HEADS | {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = HEADS | {
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1},
    **{"num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "mlp_layer_types": ["dense"] * 2},
}
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
    "lfm3": HEADS | {"layer_types": ["conv", "full_attention"]},
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
    "qwen3_5_moe_text": DELTA | EXPERTS | {"shared_expert_intermediate_size": 16, "head_dim": 16},
    "kimi_linear": LATENT
    | {"linear_head_dim": 16, "linear_num_heads": 2, "layer_types": ["linear_attention", "full_attention"]},
    "bailing_hybrid": LATENT
    | {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense"] * 2},
    "olmo_hybrid": DELTA,
    "lfm2": HEADS | {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": HEADS | EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
}
ROWS, FLAT, OFFSETS_TOO, MASK = "either preset", "`padding-free`", "`padding-free` and `cu_seqlens`", "a mask as well"
APART = {
    **dict.fromkeys(("bamba", "zamba2", "falcon_h1", "nemotron_h", "lfm2", "lfm2_moe"), ROWS),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), FLAT),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), OFFSETS_TOO),
    "granitemoehybrid": MASK,
}
"""What keeps sequences apart where the kernels are installed; nothing where a model is left out."""
SEEN = {
    ROWS: {"rows": False, "padding-free": False},
    FLAT: {"rows": True, "padding-free": False},
    OFFSETS_TOO: {"rows": True, "padding-free": True, "cu_seqlens": False},
    MASK: {"rows": True, "padding-free": True, "mask": False},
    "nothing": {"rows": True, "padding-free": True},
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


def put_in_stand_ins():
    """Packages of kernels, as transformers looks for them when it imports a model."""

    def add_up(values, ends):
        return torch.cat([part.cumsum(1) for part in values.tensor_split(ends, 1)], 1)

    def ends_of(seq_idx):
        return [] if seq_idx is None else (seq_idx[0].diff().nonzero().flatten() + 1).tolist()

    def convolve(x, weight, bias=None, seq_idx=None, activation=None):
        return add_up(x.transpose(1, 2), ends_of(seq_idx)).transpose(1, 2)

    def delta_rule(q, k, v, g, beta, cu_seqlens=None):
        return add_up(v, [] if cu_seqlens is None else cu_seqlens[1:-1].tolist()), None

    def chunk_scan(x, dt, A, B, C, chunk_size, D=None, seq_idx=None, return_final_states=False):  # noqa: N803
        out = add_up(x, ends_of(seq_idx))
        return (out, None) if return_final_states else out

    def scan(u, delta, A, B, C, D=None, return_last_state=False):  # noqa: N803
        out = add_up(u.transpose(1, 2), []).transpose(1, 2)
        return (out, None) if return_last_state else out

    for name, members in {
        **{package: {} for package in ("fla", "fla.ops", "mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")},
        "causal_conv1d": {"causal_conv1d_fn": convolve},
        "fla.ops.kda": {"chunk_kda": delta_rule},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": delta_rule},
        "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": chunk_scan},
        "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": scan},
    }.items():
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update(members, __path__=[], __spec__=ModuleSpec(name, None))


def mask_of_two():
    """For GraniteMoeHybrid, whose attention makes a mask without `position_ids`."""
    is_apart = torch.block_diag(*[torch.ones(LENGTH, LENGTH).tril()] * 2).bool()
    return torch.zeros(2 * LENGTH, 2 * LENGTH).masked_fill(~is_apart, float("-inf"))[None, None]


def seen_with_kernels(name):
    """Whether the second sequence sees the first, for each preset and with what else the model takes."""
    model = make_model(name)
    more = {
        "cu_seqlens": {"cu_seqlens": OFFSETS},
        "mask": {"attention_mask": {"full_attention": mask_of_two(), "linear_attention": None}},
    }
    return {
        way: differs_from_alone(model, PADDING_FREE | more[way]) if way in more else sees_other_sequences(model, way)
        for way in SEEN[APART.get(name, "nothing")]
    }


def test_kernels_keep_apart_what_the_model_gives_them():
    """In a process of its own: transformers looks for kernels once, when it imports a model."""
    names = [*SEES, *REFUSES]
    with multiprocessing.get_context("spawn").Pool(1, put_in_stand_ins) as pool:
        found = dict(zip(names, pool.map(seen_with_kernels, names), strict=True))
    assert found == {name: SEEN[APART.get(name, "nothing")] for name in names}


def test_the_guide_has_the_table():
    guide = Path(__file__).parents[3] / "client" / "guides" / "masks.md"
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| (leaks|refuses) \| ([^|]+) \|", guide.read_text(encoding="utf-8"), re.MULTILINE
    )
    table = {name: verdicts for names, *verdicts in rows for name in re.findall(r"\w+", names)}
    assert table == {
        name: ["leaks" if name in SEES else "refuses", APART.get(name, "nothing")] for name in (*SEES, *REFUSES)
    }
