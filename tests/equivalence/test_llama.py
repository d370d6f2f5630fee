"""Packing changes nothing but the speed: a Llama gives every sequence the loss and gradients that it has alone.

Every path by which a mask of ours reaches attention is held against each sequence run alone, and against the same path
with a mask that lets one token through, which must not pass.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from packhorse.client import BatchAssembler, BinBlock, get_preset
from packhorse.client.masks import (
    build_block_mask,
    build_boolean_mask,
    build_packing_attention_bias,
    build_varlen_offsets,
    varlen_attention,
)
from packhorse.client.sources import IndexableSource

VOCABULARY, MAX_SEQ_LEN = 61, 24
BINS = [[7, 9, 4], [12, 12], [1, 5, 2, 1], [24]]
"""Lengths by bin: with padding, without, with sequences of one token, and one sequence alone."""
LEAKING = 1
"""The sequence that a leaking mask lets see one token of the sequence before it."""


@dataclass(frozen=True)
class Path:
    """One way from offsets to attention."""

    attention: str
    """transformers' `attn_implementation`."""
    inputs: object
    """Function of (batch, dtype, device, leak) that gives what the model takes beside `input_ids`."""
    flatten: bool = False


def bias_inputs(batch, dtype, device, leak):
    bias = build_packing_attention_bias(batch, dtype, device, causal=True)
    if leak:
        bias[leak_of(batch)] = 0
    return rows(batch, bias)


def boolean_inputs(batch, dtype, device, leak):
    mask = build_boolean_mask(batch, device, causal=True)
    if leak:
        mask[leak_of(batch)] = True
    return rows(batch, mask)


def block_inputs(batch, dtype, device, leak):
    mask = build_block_mask(batch, device, causal=True, block_size=8 if device == "cpu" else 128)
    if leak:
        row, _, query, key = leak_of(batch)
        sound = mask.mask_mod
        mask.mask_mod = lambda b, h, q, kv: sound(b, h, q, kv) | ((b == row) & (q == query) & (kv == key))
    return rows(batch, mask)


def padding_free_inputs(batch, dtype, device, leak):
    keys = get_preset("padding-free").convert(batch)
    del keys["input_ids"], keys["labels"]
    if leak:  # the boundary comes one token late
        first = int(batch["layout"].starts[LEAKING])
        positions = keys["position_ids"].clone()
        positions[0, first] = positions[0, first - 1] + 1
        positions[0, first + 1 : first + batch["layout"].lengths[LEAKING]] -= 1
        offsets = keys["cu_seq_lens_q"].clone()
        offsets[LEAKING] += 1
        keys |= {"position_ids": positions, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    return keys


def varlen_inputs(batch, dtype, device, leak):
    offsets = build_varlen_offsets(batch, device)
    if leak:
        offsets.cu_seqlens[LEAKING] -= 1
    return {"position_ids": batch["position_ids"], "offsets": offsets}


def rows(batch, mask):
    return {"attention_mask": mask, "position_ids": batch["position_ids"]}


def leak_of(batch):
    """Index of one forbidden pair in a mask [B, 1, L, L]: LEAKING's first token, and the token before it."""
    row, first = divmod(int(batch["layout"].starts[LEAKING]), MAX_SEQ_LEN)
    assert first > 0
    return row, 0, first, first - 1


def attend_by_block_lists(module, query, key, value, attention_mask, scaling, **_):
    """Attention over exactly what a BlockMask lists: all of its full blocks, its mask_mod in the partial ones."""
    size, (length, _) = attention_mask.BLOCK_SIZE[0], attention_mask.seq_lengths

    def blocks(numbers, lists):
        is_listed = torch.arange(lists.shape[-1], device=lists.device) < numbers[..., None]
        dense = torch.zeros(lists.shape, dtype=torch.bool, device=lists.device).scatter(-1, lists.long(), is_listed)
        return dense.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., :length, :length]

    partial = blocks(attention_mask.kv_num_blocks, attention_mask.kv_indices)
    full = blocks(attention_mask.full_kv_num_blocks, attention_mask.full_kv_indices)
    b, q, kv = (torch.arange(n, device=query.device) for n in (query.shape[0], length, length))
    by_token = attention_mask.mask_mod(b[:, None, None], torch.tensor(0, device=query.device), q[:, None], kv)[:, None]
    return attend(query, key, value, full | partial & by_token, scaling), None


def attend_by_offsets(module, query, key, value, attention_mask, scaling, cu_seq_lens_q, cu_seq_lens_k, **_):
    """What a variable-length kernel computes: causal attention within each pair of offsets, and nothing across."""
    assert torch.equal(cu_seq_lens_q, cu_seq_lens_k)
    parts = [
        attend(*(states[:, :, start:end] for states in (query, key, value)), None, scaling)
        for start, end in zip(cu_seq_lens_q[:-1].tolist(), cu_seq_lens_q[1:].tolist(), strict=True)
    ]
    return torch.cat(parts, 1), None


def attend_by_kernel(module, query, key, value, attention_mask, scaling, offsets, **_):
    """The kernel for variable lengths that `varlen_attention` finds, over one flattened row."""
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    states = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    return varlen_attention(*states, offsets, causal=True, scale=scaling)[None], None


def attend(query, key, value, mask, scaling):
    states = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )
    return states.transpose(1, 2).contiguous()


AttentionInterface.register("by_block_lists", attend_by_block_lists)
AttentionInterface.register("by_offsets", attend_by_offsets)
AttentionInterface.register("by_kernel", attend_by_kernel)

PATHS = {
    "dense bias, eager": Path("eager", bias_inputs),
    "dense bias, SDPA": Path("sdpa", bias_inputs),
    "boolean mask, SDPA": Path("sdpa", boolean_inputs),
    "FlexAttention": Path("flex_attention", block_inputs),
    "FlexAttention's block lists": Path("by_block_lists", block_inputs),
    "padding-free, eager": Path("eager", padding_free_inputs, flatten=True),
    "padding-free, SDPA": Path("sdpa", padding_free_inputs, flatten=True),
    "padding-free, offsets": Path("by_offsets", padding_free_inputs, flatten=True),
}
GPU_PATHS = PATHS | {"variable-length kernel": Path("by_kernel", varlen_inputs, flatten=True)}
TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 4e-2}
"""Relative; of float32 and of bfloat16 with 8 bits of precision through two layers and back."""

DTYPES = [
    pytest.param(torch.float32, id="torch.float32"),
    pytest.param(torch.bfloat16, id="torch.bfloat16", marks=pytest.mark.long),
]


def model_of(attention, dtype):
    """Weights large enough that one token let through changes a loss by more than rounding does."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,  # heads of 16, the least that kernels take
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(dtype)


def tokens_of_all():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (n,), generator=generator) for lengths in BINS for n in lengths]


def assemble(sequences, *, flatten):
    lengths = np.array([n for one_bin in BINS for n in one_bin], np.int32)
    block = BinBlock(
        ids=np.arange(len(lengths)),
        lengths=lengths,
        bin_ends=np.cumsum([len(one_bin) for one_bin in BINS]),
        positions=np.arange(len(BINS)),
    )
    return BatchAssembler(MAX_SEQ_LEN, flatten=flatten).assemble(block, IndexableSource(sequences))


def loss_of(logits, tokens):
    """Summed loss of one sequence: float32 logits [n, V], tokens [n]."""
    return cross_entropy(logits[:-1].float(), tokens[1:], reduction="sum")


def alone(dtype, sequences, device="cpu"):
    """(loss, gradient of all weights [W]) of each sequence in a forward pass of its own."""
    model = model_of("eager", dtype).to(device)
    results = []
    for tokens in sequences:
        tokens = tokens.to(device)
        results.append(with_gradient(model, loss_of(model(input_ids=tokens[None]).logits[0], tokens)))
    return results


def logits_of_packed(model, path, sequences, dtype, device="cpu", *, leak=False):
    """Logits of each sequence, from one forward pass of all."""
    batch = assemble(sequences, flatten=path.flatten)
    inputs = {"input_ids": batch["input_ids"]} | path.inputs(batch, dtype, device, leak)
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    logits = model(**inputs).logits.flatten(0, 1)
    spans = zip(batch["layout"].starts.tolist(), batch["layout"].lengths.tolist(), strict=True)
    return [logits[start : start + length] for start, length in spans]


def packed(path, dtype, sequences, device="cpu", *, leak=False):
    """The same as `alone`, from one forward pass of all."""
    model = model_of(path.attention, dtype).to(device)
    logits = logits_of_packed(model, path, sequences, dtype, device, leak=leak)
    return [with_gradient(model, loss_of(*pair)) for pair in zip(logits, to(sequences, device), strict=True)]


def to(sequences, device):
    return [tokens.to(device) for tokens in sequences]


def with_gradient(model, loss):
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return loss.detach(), torch.cat([part.flatten().float() for part in gradients])


def distance(found, expected):
    """How far (loss, gradient) is from the expected one, relative to it."""
    loss = (found[0] - expected[0]).abs() / expected[0].abs().clamp(min=1e-6)
    gradient = (found[1] - expected[1]).norm() / expected[1].norm().clamp(min=1e-6)
    return max(loss.item(), gradient.item())


@pytest.fixture(autouse=True)
def flex_attention_with_gradients_on_the_cpu(monkeypatch):
    """FlexAttention's own uncompiled code, which refuses gradients on the CPU only because no kernel has them there."""
    monkeypatch.setattr(flex, "_validate_device", lambda *states: None)
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (n,), generator=generator) for lengths in BINS for n in lengths]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_equals_alone(name, dtype, sequences):
    pairs = zip(packed(PATHS[name], dtype, sequences), alone(dtype, sequences), strict=True)
    distances = [distance(*pair) for pair in pairs]
    assert len(distances) == sum(map(len, BINS))
    assert max(distances) <= TOLERANCES[dtype]


@pytest.mark.parametrize(
    "name", [name if "dense" not in name else pytest.param(name, marks=pytest.mark.long) for name in PATHS]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_that_leaks_one_token_does_not_pass(name, dtype, sequences):
    pairs = zip(packed(PATHS[name], dtype, sequences, leak=True), alone(dtype, sequences), strict=True)
    distances = [distance(*pair) for pair in pairs]
    assert distances[LEAKING] > 5 * TOLERANCES[dtype]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_bit_depends_on_a_neighbour(name, dtype, sequences):
    """Other tokens in all other sequences, and the very same logits; with a leak they are not the same."""
    path, others = PATHS[name], [(tokens + 1) % VOCABULARY for tokens in sequences]
    others[LEAKING] = sequences[LEAKING]
    model = model_of(path.attention, dtype)
    with torch.no_grad():
        for leak in (False, True):
            mine, again = (
                logits_of_packed(model, path, tokens, dtype, leak=leak)[LEAKING] for tokens in (sequences, others)
            )
            assert torch.equal(mine, again) is not leak


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_equals_alone_on_a_gpu(name, dtype, sequences):
    if name == "variable-length kernel" and dtype is torch.float32:
        pytest.skip("kernels for variable lengths take half precision only")
    path, expected = GPU_PATHS[name], alone(dtype, sequences, "cuda")
    found = packed(path, dtype, sequences, "cuda")
    assert max(distance(*pair) for pair in zip(found, expected, strict=True)) <= 10 * TOLERANCES[dtype]
    leaking = packed(path, dtype, sequences, "cuda", leak=True)
    assert distance(leaking[LEAKING], expected[LEAKING]) > 11 * TOLERANCES[dtype]
