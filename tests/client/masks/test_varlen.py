"""Calls into variable-length kernels and xformers, against dense attention and against recorded calls."""

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.attention.varlen
from torch.nn.functional import scaled_dot_product_attention

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import (
    build_block_diagonal_mask,
    build_unpadding,
    build_varlen_offsets,
    varlen,
    varlen_attention,
)

CASES = [(causal, window) for causal in (True, False) for window in (None, 1, 3)]


def attend_one_by_one(query, key, value, layout, *, causal, window, scale):
    """Every sequence alone, by `scaled_dot_product_attention`; [tokens, heads, head size] as kernels have it."""
    results = []
    for q, k, v in zip(*(tensor.split(layout.lengths.tolist()) for tensor in (query, key, value)), strict=True):
        distance = torch.arange(len(q), device=q.device)[:, None] - torch.arange(len(q), device=q.device)
        allowed = torch.ones_like(distance, dtype=torch.bool)
        if causal:
            allowed &= distance >= 0
        if window is not None:
            allowed &= distance.abs() < window
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        result = scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale, enable_gqa=True)
        results.append(result.transpose(0, 1))
    return torch.cat(results)


def documented(query, key, value, cu_seqlens, longest, scale, window_size):
    """Both kernels' contract: a query sees `left` keys before it and `right` behind it, −1 for all."""
    assert cu_seqlens.dtype == torch.int32
    assert type(longest) is int
    assert longest >= cu_seqlens.diff().max()
    output = torch.full_like(query, torch.nan)
    left, right = window_size
    groups = query.shape[1] // key.shape[1]
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        for i in range(start, stop):
            first = start if left < 0 else max(start, i - left)
            end = stop if right < 0 else min(stop, i + right + 1)
            for head in range(query.shape[1]):
                scores = key[first:end, head // groups] @ query[i, head] * (scale or query.shape[2] ** -0.5)
                output[i, head] = scores.softmax(0) @ value[first:end, head // groups]
    return output


def torchs(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert cu_seq_k is cu_seq_q
    assert max_k == max_q
    return documented(query, key, value, cu_seq_q, max_q, scale, window_size)


def flashs(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    assert dropout_p == 0
    assert cu_seqlens_k is cu_seqlens_q
    assert max_seqlen_k == max_seqlen_q
    left, right = window_size
    return documented(q, k, v, cu_seqlens_q, max_seqlen_q, softmax_scale, (left, 0 if causal else right))


@pytest.fixture
def kernels(monkeypatch):
    """Puts both in the places of the real ones, and lets them run on the CPU."""
    flash_attn = ModuleType("flash_attn")
    flash_attn.__spec__ = ModuleSpec("flash_attn", None)
    flash_attn.flash_attn_varlen_func = flashs
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn)
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", torchs)
    monkeypatch.setattr(varlen, "_refuse_devices_without_kernels", lambda device: None)


def tensors(num_tokens, *, device="cpu", dtype=torch.float64, size=4):
    random = torch.Generator().manual_seed(5)
    shapes = ((num_tokens, 4, size), (num_tokens, 2, size), (num_tokens, 2, size))
    return [torch.randn(shape, generator=random).to(device, dtype) for shape in shapes]


def test_the_stand_in_has_the_signature_of_torchs_kernel():
    theirs = inspect.signature(torch.nn.attention.varlen.varlen_attn).parameters.values()
    ours = inspect.signature(torchs).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kernel", ["torch", "flash", "auto"])
@pytest.mark.parametrize(("causal", "window"), CASES)
def test_each_sequence_is_attended_alone(two_rows, kernel, causal, window):
    query, key, value = tensors(two_rows.num_tokens)
    choices = {"causal": causal, "window": window, "scale": 0.3}
    expected = attend_one_by_one(query, key, value, two_rows, **choices)
    wheres = (two_rows, {"layout": two_rows}, build_varlen_offsets(two_rows, "cpu", num_sequences=9, max_seqlen=16))
    for where in wheres:
        torch.testing.assert_close(varlen_attention(query, key, value, where, kernel=kernel, **choices), expected)


@pytest.mark.usefixtures("kernels")
def test_the_kernel_of_torch_2_11_gets_as_many_heads_of_keys(two_rows, monkeypatch):
    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        return torchs(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", older)
    query, key, value = tensors(two_rows.num_tokens)
    expected = attend_one_by_one(query, key, value, two_rows, causal=True, window=None, scale=None)
    torch.testing.assert_close(varlen_attention(query, key, value, two_rows, causal=True, kernel="torch"), expected)


@pytest.mark.usefixtures("kernels")
def test_a_torch_whose_kernel_has_no_window_is_too_old(two_rows, monkeypatch):
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", lambda query, key, value, is_causal: query)
    with pytest.raises(ImportError, match=r"takes no window_size; install torch 2\.11 or newer, or flash-attn"):
        varlen_attention(*tensors(two_rows.num_tokens), two_rows, causal=True, kernel="torch")


@pytest.mark.usefixtures("kernels")
def test_the_default_is_the_usual_scale(two_rows):
    query, key, value = tensors(two_rows.num_tokens)
    expected = attend_one_by_one(query, key, value, two_rows, causal=True, window=None, scale=None)
    torch.testing.assert_close(varlen_attention(query, key, value, two_rows, causal=True), expected)


@pytest.mark.usefixtures("kernels")
def test_auto_takes_flash_attention_where_it_is_installed(two_rows, monkeypatch):
    calls = []
    monkeypatch.setitem(varlen._KERNELS, "flash", lambda *_: calls.append("flash"))
    monkeypatch.setitem(varlen._KERNELS, "torch", lambda *_: calls.append("torch"))
    varlen_attention(*tensors(two_rows.num_tokens), two_rows, causal=True)
    monkeypatch.setattr(varlen, "find_spec", lambda name: None)
    varlen_attention(*tensors(two_rows.num_tokens), two_rows, causal=True)
    assert calls == ["flash", "torch"]


def test_on_the_cpu_it_says_what_to_use_instead(two_rows):
    for kernel in ("auto", "torch", "flash"):
        with pytest.raises(ValueError, match="build_block_mask"):
            varlen_attention(*tensors(23), two_rows, causal=True, kernel=kernel)


def test_what_makes_no_sense_is_refused(two_rows, monkeypatch):
    monkeypatch.setattr(varlen, "_refuse_devices_without_kernels", lambda device: None)
    with pytest.raises(ValueError, match="kernel must be auto, flash or torch; got 'xformers'"):
        varlen_attention(*tensors(23), two_rows, causal=True, kernel="xformers")
    with pytest.raises(ValueError, match=r"build_unpadding.*\[1, 23, 4, 4\]"):
        varlen_attention(*(tensor[None] for tensor in tensors(23)), two_rows, causal=True)
    with pytest.raises(ValueError, match="window"):
        varlen_attention(*tensors(23), two_rows, causal=True, window=0)


def test_a_kernel_that_is_not_installed_is_named(two_rows, monkeypatch):
    monkeypatch.setattr(varlen, "_refuse_devices_without_kernels", lambda device: None)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ImportError, match='install flash-attn, or choose kernel="torch"'):
        varlen_attention(*tensors(23), two_rows, causal=True, kernel="flash")
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    with pytest.raises(ImportError, match=r"no torch\.nn\.attention\.varlen"):
        varlen_attention(*tensors(23), two_rows, causal=True, kernel="torch")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["torch", *(["flash"] if importlib.util.find_spec("flash_attn") else [])])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 100), (False, 100)])
def test_real_kernels(kernel, causal, window):
    layout = PackLayout.of_rows(np.array([300, 1, 212, 400]), np.array([3, 4]), 513)
    query, key, value = tensors(layout.num_tokens, device="cuda", dtype=torch.bfloat16, size=64)
    choices = {"causal": causal, "window": window, "scale": None}
    unpadding = build_unpadding(layout, "cuda")
    query = unpadding.unpad(unpadding.pad(query))
    offsets = build_varlen_offsets(layout, "cuda", num_sequences=8, max_seqlen=513)
    expected = attend_one_by_one(query.float(), key.float(), value.float(), layout, **choices)
    result = varlen_attention(query, key, value, offsets, kernel=kernel, **choices)
    torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2)


@dataclass
class BlockDiagonalMask:
    """`from_seqlens` takes the lengths of sequences laid end to end; `materialize` gives the additive bias."""

    seqlens: list[int]
    causal: bool = False

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        assert all(type(length) is int for length in q_seqlen)
        return cls(q_seqlen)

    def make_causal(self):
        return BlockDiagonalMask(self.seqlens, causal=True)

    def materialize(self, shape):
        blocks = [torch.ones(length, length) for length in self.seqlens]
        allowed = torch.block_diag(*blocks) != 0
        if self.causal:
            allowed = allowed.tril()
        return torch.where(allowed, 0.0, -torch.inf)


@pytest.fixture(params=["stand-in", *(["xformers"] if importlib.util.find_spec("xformers") else [])])
def xformers(request, monkeypatch):
    if request.param == "stand-in":
        attn_bias = ModuleType("xformers.ops.fmha.attn_bias")
        attn_bias.BlockDiagonalMask = BlockDiagonalMask
        for name in ("xformers", "xformers.ops", "xformers.ops.fmha"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, attn_bias.__name__, attn_bias)


@pytest.mark.usefixtures("xformers")
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_are_the_sequences(two_rows, causal):
    mask = build_block_diagonal_mask(two_rows, causal=causal)
    sequence = torch.arange(5).repeat_interleave(torch.tensor([5, 1, 7, 4, 6]))
    allowed = sequence[:, None] == sequence
    if causal:
        allowed = allowed.tril()
    assert torch.equal(mask.materialize((23, 23)) == 0, allowed)


def test_without_xformers_the_way_out_is_named(two_rows, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "xformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "xformers", None)
    with pytest.raises(ImportError, match=r"install it.*varlen_attention or build_block_mask"):
        build_block_diagonal_mask(two_rows, causal=True)
