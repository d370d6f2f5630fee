"""xformers' mask, made by xformers itself where it is installed, and by what its documentation says."""

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from packhorse.client.masks import build_block_diagonal_mask


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
