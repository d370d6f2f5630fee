"""Padding out and back in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_unpadding


@given(st.from_type(PackLayout), st.sampled_from([(), (3,), (2, 2)]))
def test_tokens_come_in_the_order_of_the_sequences_and_go_back(layout, tail):
    unpadding = build_unpadding(layout, "cpu")
    padded = torch.arange(layout.num_rows * layout.row_tokens * torch.Size(tail).numel(), dtype=torch.float64) + 1
    padded = padded.view(layout.num_rows, layout.row_tokens, *tail)
    flat = padded.flatten(0, 1)
    spans = list(zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True))
    expected = torch.cat([flat[:0], *(flat[start : start + length] for start, length in spans)])
    tokens = unpadding.unpad(padded)
    assert torch.equal(tokens, expected)

    again = torch.full_like(flat, -7)
    for start, length in spans:
        again[start : start + length] = flat[start : start + length]
    assert torch.equal(unpadding.pad(tokens, fill=-7), again.view_as(padded))


def test_gradients_pass_both_ways(two_rows):
    unpadding = build_unpadding({"layout": two_rows}, "cpu")
    padded = torch.randn(2, 16, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unpadding.unpad, padded)
    tokens = torch.randn(23, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unpadding.pad, tokens)


def test_other_shapes_are_refused(two_rows):
    unpadding = build_unpadding(two_rows, "cpu")
    with pytest.raises(ValueError, match=r"\[2, 16, \.\.\.\]"):
        unpadding.unpad(torch.zeros(16, 2))
    with pytest.raises(ValueError, match=r"\[23, \.\.\.\]"):
        unpadding.pad(torch.zeros(22))
