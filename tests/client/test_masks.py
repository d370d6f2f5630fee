"""Masks and offsets against seqpack's own functions, and attention itself packed against alone."""

import numpy as np
import pytest
import seqpack.masking
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils._python_dispatch import TorchDispatchMode

from packhorse.client.batch import BatchAssembler
from packhorse.client.blocks import BinBlock
from packhorse.client.masks import build_packing_attention_bias, build_packing_cu_seqlens
from packhorse.client.tokens import IndexableSource

SHAPES = hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=12)


@st.composite
def labels_and_mask(draw):
    shape = draw(SHAPES)
    labels = draw(hnp.arrays(draw(st.sampled_from([np.int32, np.int64])), shape, elements=st.integers(-1, 3)))
    mask = draw(hnp.arrays(draw(st.sampled_from([np.bool_, np.int64])), shape, elements=st.integers(0, 1)))
    return torch.from_numpy(labels), torch.from_numpy(mask)


@settings(deadline=None)
@given(labels_and_mask(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_bias_is_seqpacks(case, dtype):
    labels, _ = case
    ours = build_packing_attention_bias(labels, dtype, torch.device("cpu"))
    theirs = seqpack.masking.build_packing_attention_bias(labels, dtype, torch.device("cpu"))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@settings(deadline=None)
@given(labels_and_mask())
def test_causal_bias_also_blocks_the_future_and_no_row_is_all_blocked(case):
    labels, _ = case
    bias = build_packing_attention_bias(labels, torch.float32, "cpu", causal=True)
    rows = labels if labels.dim() == 2 else labels[None]
    for b, row in enumerate(rows.tolist()):
        allowed = [[i >= j and row[i] == row[j] for j in range(len(row))] for i in range(len(row))]
        assert (bias[b, 0] == 0).tolist() == allowed
    assert (bias == 0).any(-1).all()


def test_bias_needs_a_type_with_infinity():
    with pytest.raises(ValueError, match="dtype"):
        build_packing_attention_bias(torch.zeros(1, 2), torch.int64, "cpu")
    with pytest.raises(ValueError, match="sequence_ids"):
        build_packing_attention_bias(torch.zeros(1, 2, 3), torch.float32, "cpu")


@settings(max_examples=200, deadline=None)
@given(labels_and_mask(), st.booleans())
def test_cu_seqlens_are_seqpacks(case, with_mask):
    labels, mask = case
    mask = mask if with_mask else None
    ours, our_longest = build_packing_cu_seqlens(labels, mask)
    theirs, their_longest = seqpack.masking.build_packing_cu_seqlens(labels, mask)
    assert ours.dtype == torch.int32
    assert ours.tolist() == theirs.tolist()
    assert our_longest == their_longest
    assert type(our_longest) is int


def test_cu_seqlens_of_masked_hole_and_of_rows():
    labels = torch.tensor([[5, 5, 7, 5, 5, 6], [6, 6, 6, 6, 6, 6]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    cu_seqlens, max_seqlen = build_packing_cu_seqlens(labels, mask)
    assert cu_seqlens.tolist() == [0, 4, 5, 8]
    assert max_seqlen == 4
    assert build_packing_cu_seqlens(torch.zeros(2, 0, dtype=torch.int32))[0].tolist() == [0]
    with pytest.raises(ValueError, match="attention_mask"):
        build_packing_cu_seqlens(labels, mask.T)


def test_cu_seqlens_read_no_data_before_the_end():
    """On an accelerator each of these operations makes the host wait."""

    class Record(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            self.names.append(func.name())
            if func.name() == "aten::index.Tensor":
                assert all(index is None or index.dtype != torch.bool for index in args[1])
            return func(*args, **kwargs)

    with Record() as record:
        build_packing_cu_seqlens(torch.tensor([[0, 0, 1, 2]]), torch.tensor([[1, 1, 1, 0]]))
    waiting = {"aten::nonzero", "aten::masked_select", "aten::_local_scalar_dense", "aten::_unique2"}
    assert not waiting & set(record.names)
    assert "aten::scatter_.src" in record.names  # the recorder sees the work at all


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
