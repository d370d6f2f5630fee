"""The example of the package's DESIGN.md: two sequences in rooms that are longer, and what is made of them."""

import numpy as np
import pytest
import torch

from packhorse.client.batches._positions import write_position_ids
from packhorse.client.batches.labels import write_causal_labels
from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_block_mask, build_boolean_mask, build_packing_attention_bias

SEGMENTS = [0, 5, 8, 11, 12, 16]


@pytest.fixture
def layout():
    return PackLayout.of_rows([8, 4], [2], 16, lengths=[5, 3])


def test_offsets_and_labels_of_its_tokens(layout):
    position_ids = np.empty(16, dtype=np.int64)
    write_position_ids(position_ids, layout, first_tokens=None, num_bos=0)
    assert layout.segments.tolist() == SEGMENTS
    assert layout.sequence_ids().tolist() == [[0] * 5 + [3] * 3 + [1] * 3 + [4] + [2] * 4]
    assert position_ids.tolist() == [*range(8), *range(4), *range(4)]
    assert layout.cu_seqlens.tolist() == [0, 5, 8]
    assert layout.cu_seqlens_padded.tolist() == [0, 8, 16]
    flat = layout.flattened(total_multiple_of=12)
    assert (flat.num_rows, flat.row_tokens) == (1, 12)
    assert flat.cu_seqlens.tolist() == [0, 5, 8]
    assert flat.segments.tolist() == [0, 5, 8, 12]


def test_loss_mask_chooses_the_predicted_token(layout):
    tokens = np.arange(100, 116)
    is_predicted = np.ones(16, dtype=np.bool_)
    is_predicted[[2, 5]] = False
    labels = np.empty(16, dtype=np.int64)
    write_causal_labels(labels, tokens, layout, is_predicted=is_predicted, shift=False)
    unshifted = [-100, 101, -100, 103, 104, *[-100] * 3, -100, 109, 110, *[-100] * 5]
    assert labels.tolist() == unshifted
    write_causal_labels(labels, tokens, layout, is_predicted=is_predicted, shift=True)
    assert labels.tolist() == [*unshifted[1:], -100]


@pytest.mark.parametrize("causal", [False, True])
def test_padding_sees_its_own_segment(layout, causal):
    index = np.arange(16)
    segment = np.searchsorted(SEGMENTS, index, side="right")
    expected = segment[:, None] == segment[None, :]
    if causal:
        expected &= index[:, None] >= index[None, :]

    dense = build_boolean_mask(layout, "cpu", causal=causal, head_dim=False)[0]
    bias = build_packing_attention_bias(layout, torch.float32, "cpu", causal=causal).reshape(16, 16)
    of_tokens = build_block_mask(layout, "cpu", causal=causal).mask_mod
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    none = torch.zeros((), dtype=torch.int64)
    for mask in (dense, bias == 0, of_tokens(none, none, rows, columns)):
        assert mask.numpy().tolist() == expected.tolist()
    assert dense.any(-1).all()


def test_masked_padding_leaves_rows_empty(layout):
    mask = build_boolean_mask(layout, "cpu", causal=True, head_dim=False, mask_padding=True)[0]
    is_padding = np.isin(np.arange(16), [5, 6, 7, 11, 12, 13, 14, 15])
    assert (~mask.any(-1)).tolist() == is_padding.tolist()
    assert (~mask.any(-2)).tolist() == is_padding.tolist()
