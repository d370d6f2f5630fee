"""Masks of booleans and of labels against the pairs one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_boolean_mask, build_labelled_mask
from packhorse.client.masks._band import Band
from packhorse.client.masks.on_device import pairs_of_equals, segment_index, token_labels

WINDOWS = st.none() | st.integers(1, 100)


@given(st.from_type(PackLayout), st.booleans(), WINDOWS, st.booleans(), st.booleans())
def test_true_where_attention_is_allowed(allowed_pairs, layout, causal, window, head_dim, mask_padding):
    mask = build_boolean_mask(layout, "cpu", causal=causal, window=window, head_dim=head_dim, mask_padding=mask_padding)
    expected = torch.from_numpy(allowed_pairs(layout, causal=causal, window=window, mask_padding=mask_padding))
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected[:, None] if head_dim else expected)
    assert mask_padding or mask.any(-1).all()


@given(st.from_type(PackLayout), st.booleans(), WINDOWS)
def test_comparing_labels_as_devices_do_gives_the_same(allowed_pairs, layout, causal, window):
    band = Band.of(causal=causal, window=window)
    expected = torch.from_numpy(allowed_pairs(layout, causal=causal, window=window))
    cpu = torch.device("cpu")
    assert torch.equal(pairs_of_equals(segment_index(layout, cpu), band), expected)
    labels = token_labels(layout, cpu)
    expected = torch.from_numpy(allowed_pairs(layout, causal=causal, window=window, mask_padding=True))
    assert torch.equal(pairs_of_equals(labels, band) & (labels != 0)[:, :, None], expected)


@given(st.from_type(PackLayout), st.sampled_from([torch.int64, torch.int32]))
def test_labels_count_sequences_from_one_and_padding_is_zero(layout, dtype):
    mask = build_labelled_mask(layout, "cpu", dtype=dtype)
    expected = torch.zeros(layout.num_rows * layout.row_tokens, dtype=dtype)
    first = 0
    for end in layout.row_ends.tolist():
        for label in range(end - first):
            start, length = layout.starts[first + label], layout.lengths[first + label]
            expected[start : start + length] = label + 1
        first = end
    assert mask.dtype == dtype
    assert torch.equal(mask, expected.view(layout.num_rows, layout.row_tokens))


def test_of_a_batch_and_of_offsets(two_rows):
    of_batch = build_boolean_mask({"layout": two_rows}, "cpu", causal=False)
    assert torch.equal(of_batch, build_boolean_mask(two_rows, "cpu", causal=False))
    mask = build_boolean_mask(torch.tensor([0, 1, 3]), "cpu", causal=False, head_dim=False)
    assert mask.tolist() == [[[True, False, False], [False, True, True], [False, True, True]]]
    assert build_labelled_mask(torch.tensor([0, 1, 3]), "cpu").tolist() == [[1, 2, 2]]


@pytest.mark.gpu
@pytest.mark.parametrize("mask_padding", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu(two_rows, causal, window, mask_padding):
    choices = {"causal": causal, "window": window, "mask_padding": mask_padding}
    mask = build_boolean_mask(two_rows, "cuda", **choices)
    assert torch.equal(mask.cpu(), build_boolean_mask(two_rows, "cpu", **choices))
    assert torch.equal(build_labelled_mask(two_rows, "cuda").cpu(), build_labelled_mask(two_rows, "cpu"))
