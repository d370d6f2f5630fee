"""Our BlockMask against `create_block_mask`, tensor by tensor, and FlexAttention against plain attention."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_block_mask

BLOCK_SIZES = st.integers(1, 40) | st.tuples(st.integers(1, 40), st.integers(1, 40))
WINDOWS = st.none() | st.integers(1, 100)


def assert_equal_masks(ours, theirs):
    for name in BlockMask._TENSOR_ATTRS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if other is None:
            assert mine is None, name
            continue
        assert mine.dtype == other.dtype, name
        assert mine.device == other.device, name
        assert mine.stride() == other.stride(), name
        assert mine.tolist() == other.tolist(), name
    for name in BlockMask._CONTEXT_ATTRS:
        if name != "mask_mod":
            assert getattr(ours, name) == getattr(theirs, name), name


def rule(labels, causal, window):
    """The mask_mod that a user would write; labels: [B, L]."""

    def mask_mod(b, h, q, k):
        allowed = labels[b, q] == labels[b, k]
        if causal:
            allowed = allowed & (q >= k)
        if window is not None:
            allowed = allowed & ((q - k).abs() < window)
        return allowed

    return mask_mod


@settings(max_examples=300)
@given(st.from_type(PackLayout), st.booleans(), WINDOWS, BLOCK_SIZES, st.none() | st.integers(1, 3))
def test_every_tensor_is_create_block_masks(layout, causal, window, block_size, num_heads):
    ours = build_block_mask(layout, "cpu", causal=causal, window=window, block_size=block_size, num_heads=num_heads)
    labels = torch.from_numpy(layout.sequence_ids())
    theirs = create_block_mask(
        rule(labels, causal, window), *labels.shape[:1], num_heads, *labels.shape[1:] * 2, "cpu", block_size
    )
    assert_equal_masks(ours, theirs)


@settings(max_examples=50)
@given(st.from_type(PackLayout), st.booleans(), WINDOWS)
def test_mask_mod_says_the_same_of_every_pair(layout, causal, window):
    mask_mod = build_block_mask(layout, "cpu", causal=causal, window=window).mask_mod
    labels = torch.from_numpy(layout.sequence_ids())
    shape = (layout.num_rows, 2, layout.row_tokens, layout.row_tokens)
    expected = create_mask(rule(labels, causal, window), *shape, "cpu")
    assert torch.equal(create_mask(mask_mod, *shape, "cpu"), expected)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_usual_size(causal, window):
    """Rows of 1,100 tokens, whose last blocks of 128 overhang; one sequence covers several blocks."""
    layout = PackLayout.of_rows(np.array([700, 3, 130, 1100, 64, 64, 512]), np.array([3, 4, 7]), 1100)
    ours = build_block_mask(layout, "cpu", causal=causal, window=window)
    labels = torch.from_numpy(layout.sequence_ids())
    theirs = create_block_mask(rule(labels, causal, window), 3, None, 1100, 1100, "cpu")
    assert ours.full_kv_num_blocks.sum() > 0
    assert_equal_masks(ours, theirs)


def attend(query, key, value, block_mask):
    return flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_flex_attention_is_dense_attention(two_rows, allowed_pairs, causal, window):
    random = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 16, 8, generator=random)
    key, value = torch.randn(2, 2, 2, 16, 8, generator=random)
    mask = build_block_mask(two_rows, "cpu", causal=causal, window=window, block_size=(4, 8))
    allowed = torch.from_numpy(allowed_pairs(two_rows, causal=causal, window=window))[:, None]
    expected = scaled_dot_product_attention(query, key, value, attn_mask=allowed, enable_gqa=True)
    torch.testing.assert_close(attend(query, key, value, mask), expected)


def test_compiled_flex_attention_serves_the_next_batch_without_compiling_again(allowed_pairs):
    compilations = 0

    def count(graph, example_inputs):
        nonlocal compilations
        compilations += 1
        return graph

    compiled = torch.compile(attend, backend=count, fullgraph=True, dynamic=False)
    random = torch.Generator().manual_seed(3)
    for places in ([5, 1, 7, 4, 6], [16, 2, 13]):
        layout = PackLayout.of_rows(np.array(places), np.array([places.index(max(places)) + 1, len(places)]), 16)
        query, key, value = torch.randn(3, 2, 2, 16, 8, generator=random)
        allowed = torch.from_numpy(allowed_pairs(layout, causal=True))[:, None]
        expected = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        mask = build_block_mask(layout, "cpu", causal=True, block_size=8)
        torch.testing.assert_close(compiled(query, key, value, mask), expected)
    assert compilations == 1


def test_a_hundred_thousand_tokens_are_possible():
    """`create_block_mask` would ask for 16 GiB."""
    layout = PackLayout.of_rows(np.array([60_000, 1_000, 70_000]), np.array([3]), 131_072)
    mask = build_block_mask(layout, "cpu", causal=True)
    assert mask.shape == (1, 1, 131_072, 131_072)
    listed = mask.kv_num_blocks + mask.full_kv_num_blocks
    # Block 600 lies in the third sequence, which begins in block 476.
    assert listed[0, 0, 600] == 600 - 476 + 1
    assert mask.kv_indices[0, 0, 600, :2].tolist() == [476, 600]
    assert mask.full_kv_indices[0, 0, 600, :123].tolist() == list(range(477, 600))


def test_what_makes_no_sense_is_refused(two_rows):
    with pytest.raises(ValueError, match="block_size"):
        build_block_mask(two_rows, "cpu", causal=True, block_size=(128, 0))
    with pytest.raises(ValueError, match="num_heads"):
        build_block_mask(two_rows, "cpu", causal=True, num_heads=0)
    with pytest.raises(ValueError, match="window"):
        build_block_mask(two_rows, "cpu", causal=True, window=0)
    with pytest.raises(ValueError, match="layout"):
        build_block_mask({"sequence_ids": torch.zeros(1, 4)}, "cpu", causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("causal", [True, False])
def test_on_a_gpu(allowed_pairs, causal, window):
    layout = PackLayout.of_rows(np.array([700, 3, 130, 1024, 64, 64, 512]), np.array([3, 4, 7]), 1024)
    ours = build_block_mask(layout, "cuda", causal=causal, window=window)
    labels = torch.from_numpy(layout.sequence_ids()).cuda()
    assert_equal_masks(ours, create_block_mask(rule(labels, causal, window), 3, None, 1024, 1024, "cuda"))
    query, key, value = torch.randn(3, 3, 2, 1024, 64, device="cuda")
    allowed = torch.from_numpy(allowed_pairs(layout, causal=causal, window=window)).cuda()[:, None]
    expected = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
    torch.testing.assert_close(torch.compile(attend)(query, key, value, ours), expected, rtol=1e-2, atol=1e-2)
