"""Attention itself, packed against each sequence alone, through the dense bias."""

import numpy as np
import pytest
import torch

from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.masks import build_packing_attention_bias
from packhorse.client.sources import IndexableSource
from packhorse.client.streams.blocks import BinBlock


class TinyAttention(torch.nn.Module):
    """One layer of two-headed attention with positions, written out."""

    def __init__(self, vocabulary=31, width=8, heads=2, positions=64):
        super().__init__()
        generator = torch.Generator().manual_seed(7)

        def weights(*shape):
            # Small, so that no softmax saturates and hides a leak.
            return torch.nn.Parameter(0.3 * torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.tokens, self.positions = weights(vocabulary, width), weights(positions, width)
        self.qkv, self.out = weights(3, width, width), weights(width, vocabulary)
        self.heads = heads

    def forward(self, input_ids, position_ids, bias):
        hidden = self.tokens[input_ids] + self.positions[position_ids]
        q, k, v = ((hidden @ w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in self.qkv)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.out


def packed_and_alone(change_bias, causal):
    """Returns per-sequence logits, packed and alone, and the gradients of each way."""
    generator = np.random.default_rng(3)
    lengths = [5, 1, 7, 4, 6]
    sequences = [generator.integers(0, 31, n) for n in lengths]
    block = BinBlock(
        ids=np.arange(5), lengths=np.array(lengths, np.int32), bin_ends=np.array([3, 5, 5]), positions=np.arange(3)
    )
    batch = BatchAssembler(16).assemble(block, IndexableSource(sequences))
    bias = build_packing_attention_bias(batch["sequence_ids"], torch.float64, "cpu", causal=causal)
    change_bias(bias)

    together = TinyAttention()
    logits = together(batch["input_ids"], batch["position_ids"], bias)
    assert logits.isfinite().all()
    packed = logits[batch["attention_mask"].bool()].split(lengths)
    sum(part.square().sum() for part in packed).backward()

    single = TinyAttention()
    alone = []
    for tokens in sequences:
        own = torch.zeros(1, len(tokens), dtype=torch.int64)
        own_bias = build_packing_attention_bias(own, torch.float64, "cpu", causal=causal)
        alone.append(single(torch.from_numpy(tokens)[None], torch.arange(len(tokens))[None], own_bias)[0])
    sum(part.square().sum() for part in alone).backward()
    gradients = [[p.grad for p in model.parameters()] for model in (together, single)]
    return list(packed), alone, *gradients


@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_equals_each_sequence_alone(causal):
    packed, alone, packed_gradients, alone_gradients = packed_and_alone(lambda bias: None, causal)
    torch.testing.assert_close(packed, alone)
    torch.testing.assert_close(packed_gradients, alone_gradients)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("row", "query", "key"),
    [(0, 5, 4), (0, 12, 0), (1, 4, 3), pytest.param(1, 3, 15, id="to padding")],
)
def test_one_leaking_position_is_noticed(row, query, key, causal):
    def leak(bias):
        assert bias[row, 0, query, key] == -torch.inf
        bias[row, 0, query, key] = 0

    packed, alone, packed_gradients, alone_gradients = packed_and_alone(leak, causal)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(packed, alone)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(packed_gradients, alone_gradients)
