"""Experts do not see padding: the auxiliary loss of packed, padded rows is that of their sequences without padding."""

import numpy as np
import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func as mixtral_loss
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func as qwen3_loss

from packhorse.client import BatchAssembler, BatchFormat, BinBlock
from packhorse.client.presets import megatron_preset, padding_free_preset, rows_preset
from packhorse.client.sources import IndexableSource

MAX_SEQ_LEN, NUM_EXPERTS, TOP_K, ALIGN = 24, 4, 2, 4
BINS = [[7, 9, 3], [12, 5], [1, 5, 2, 1], [24], []]
"""Lengths by bin; with rooms of multiples of 4 there is padding inside rooms, at ends of rows, and a row of it."""
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": TOP_K,
    "initializer_range": 0.4,
    "attn_implementation": "sdpa",
    "experts_implementation": "eager",  # takes float64
}
MODELS = {
    "mixtral": (MixtralForCausalLM, MixtralConfig, {"num_local_experts": NUM_EXPERTS}, mixtral_loss),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        {"num_experts": NUM_EXPERTS, "moe_intermediate_size": 24, "head_dim": 8},
        qwen3_loss,
    ),
}


def batch_of(preset, align=ALIGN):
    lengths = np.array([n for one_bin in BINS for n in one_bin])
    rng = np.random.default_rng(5)
    block = BinBlock(
        ids=np.arange(len(lengths)),
        lengths=(-(-lengths // align) * align).astype(np.int32),
        bin_ends=np.cumsum([len(one_bin) for one_bin in BINS]),
        positions=np.arange(len(BINS)),
    )
    assembler = BatchAssembler(MAX_SEQ_LEN, align=align, **BatchFormat(preset=preset).rows())
    return preset.convert(assembler.assemble(block, IndexableSource([rng.integers(0, 61, n) for n in lengths])))


@pytest.fixture(scope="module", params=MODELS)
def auxiliary_loss(request):
    """Function: (auxiliary loss, padding's share of the tokens) of a batch, with its mask or without."""
    model_class, config_class, sizes, loss_of = MODELS[request.param]
    torch.manual_seed(1)
    model = model_class(config_class(**SIZES, **sizes)).double().eval()

    def make(preset, *, is_masked):
        batch = batch_of(preset)
        padding_mask = batch.pop("padding_mask")
        assert padding_mask.dtype == torch.bool
        assert padding_mask.shape == batch["input_ids"].shape
        with torch.no_grad():
            logits = model(**batch, use_cache=False, output_router_logits=True).router_logits
        mask = ~padding_mask if is_masked else None
        return float(loss_of(logits, NUM_EXPERTS, TOP_K, mask)), float(padding_mask.double().mean())

    return make


@pytest.mark.parametrize("preset", [rows_preset, padding_free_preset])
def test_padding_does_not_change_the_auxiliary_loss(preset, auxiliary_loss):
    alone, padding = auxiliary_loss(padding_free_preset(return_padding_mask=True), is_masked=False)
    assert padding == 0
    options = {"total_multiple_of": 128} if preset is padding_free_preset else {}
    padded = preset(return_padding_mask=True, **options)
    masked, padding = auxiliary_loss(padded, is_masked=True)
    assert padding > 0.4
    assert masked == pytest.approx(alone, abs=1e-6)
    skewed, _ = auxiliary_loss(padded, is_masked=False)
    assert abs(skewed - alone) > 1e-3  # without the mask experts see padding


def test_megatrons_own_losses_leave_out_what_the_mask_says():
    """Its router's auxiliary loss and z-loss of the preset's batch, and of its tokens alone."""
    moe = pytest.importorskip("megatron.core.transformer.moe.moe_utils")
    padding_mask = batch_of(megatron_preset())["padding_mask"].flatten()
    logits = torch.randn(len(padding_mask), NUM_EXPERTS, generator=torch.Generator().manual_seed(2))

    def losses(logits, mask):
        routing_map, scores = moe.compute_routing_scores_for_aux_loss(logits, TOP_K, "softmax", padding_mask=mask)
        counts = routing_map.sum(dim=0)
        auxiliary = moe.switch_load_balancing_loss_func(
            scores, counts, counts.sum() / TOP_K, topk=TOP_K, num_experts=NUM_EXPERTS, moe_aux_loss_coeff=1.0
        )
        return torch.stack((auxiliary, moe.z_loss_func(logits, 1.0, mask)))

    alone = losses(logits[~padding_mask], None)
    torch.testing.assert_close(losses(logits, padding_mask), alone, rtol=0, atol=1e-6)
    assert (losses(logits, None) - alone).abs().min() > 1e-3
