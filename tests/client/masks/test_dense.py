"""Dense masks: biases against the rule and against PyTorch, booleans and labels against the pairs one by one."""

import mmap
import weakref

import numpy as np
import pytest
import seqpack.masking
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import (
    AttentionBiasBuffer,
    build_boolean_mask,
    build_labelled_mask,
    build_packing_attention_bias,
)
from packhorse.client.masks._band import Band, pairs_of_equals
from packhorse.client.masks._host_memory import allocate
from packhorse.client.masks.labelled import token_labels
from packhorse.client.masks.token_index import segment_index

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
WINDOWS = st.none() | st.integers(1, 12)
LABELS = hnp.arrays(
    st.sampled_from([np.int32, np.int64]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=12),
    elements=st.integers(-1, 3),
).map(torch.from_numpy)


@given(LABELS, DTYPES, st.booleans())
def test_of_labels_it_is_seqpacks(labels, dtype, ascending):
    """Ascending labels have one run each; others may come again after another."""
    labels = labels.sort(dim=-1).values if ascending else labels
    ours = build_packing_attention_bias(labels, dtype, torch.device("cpu"))
    theirs = seqpack.masking.build_packing_attention_bias(labels, dtype, torch.device("cpu"))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@given(LABELS, st.booleans())
def test_causal_also_blocks_the_future_and_no_row_is_all_blocked(labels, ascending):
    labels = labels.sort(dim=-1).values if ascending else labels
    bias = build_packing_attention_bias(labels, torch.float32, "cpu", causal=True)
    rows = labels if labels.dim() == 2 else labels[None]
    for b, row in enumerate(rows.tolist()):
        allowed = [[i >= j and row[i] == row[j] for j in range(len(row))] for i in range(len(row))]
        assert (bias[b, 0] == 0).tolist() == allowed
    assert (bias == 0).any(-1).all()


@given(st.from_type(PackLayout), DTYPES, st.booleans(), WINDOWS)
def test_of_a_layout_it_is_that_of_its_labels(allowed_pairs, layout, dtype, causal, window):
    bias = build_packing_attention_bias(layout, dtype, "cpu", causal=causal, window=window)
    assert bias.dtype == dtype
    assert bias.shape == (layout.num_rows, 1, layout.row_tokens, layout.row_tokens)
    expected = np.where(allowed_pairs(layout, causal=causal, window=window), 0.0, -np.inf)[:, None]
    assert np.array_equal(bias.double().numpy(), expected)
    labels = torch.from_numpy(layout.sequence_ids())
    assert torch.equal(bias, build_packing_attention_bias(labels, dtype, "cpu", causal=causal, window=window))
    is_seen = build_boolean_mask(layout, "cpu", causal=causal, window=window)
    assert torch.equal(bias == 0, is_seen)


@given(LABELS, st.booleans(), WINDOWS)
def test_a_window_counts_tokens_of_the_row_between_labels_that_come_again(labels, causal, window):
    rows = (labels if labels.dim() == 2 else labels[None]).numpy()
    distance = np.subtract.outer(np.arange(rows.shape[1]), np.arange(rows.shape[1]))
    allowed = rows[:, :, None] == rows[:, None, :]
    allowed &= (abs(distance) < (window or np.inf)) & ((distance >= 0) | (not causal))
    bias = build_packing_attention_bias(labels, torch.float32, "cpu", causal=causal, window=window)
    assert np.array_equal(bias[:, 0].numpy(), np.where(allowed, 0, -np.inf))


def test_a_window_below_1_or_over_shared_prefixes_is_refused(two_rows):
    shared = PackLayout.of_rows(np.array([2, 3]), np.array([2]), 5, group_ids=np.array([1, 1]), shared_prefix=True)
    with pytest.raises(ValueError, match="window must be at least 1"):
        build_packing_attention_bias(two_rows, torch.float32, "cpu", causal=True, window=0)
    with pytest.raises(ValueError, match="window must be at least 1"):
        AttentionBiasBuffer(2, 16, torch.float32, causal=True, window=0)
    with pytest.raises(ValueError, match="leave out window, or shared_prefix"):
        build_packing_attention_bias(shared, torch.float32, "cpu", causal=True, window=2)
    with pytest.raises(ValueError, match="leave out window, or shared_prefix"):
        AttentionBiasBuffer(1, 5, torch.float32, causal=True, window=2).build(shared)


def test_labels_alone_are_bidirectional_as_in_seqpack_and_batches_must_say(two_rows):
    labels = torch.from_numpy(two_rows.sequence_ids())
    expected = build_packing_attention_bias(two_rows, torch.float32, "cpu", causal=False)
    assert torch.equal(build_packing_attention_bias(labels, torch.float32, "cpu"), expected)
    for where in (two_rows, {"layout": two_rows}):
        with pytest.raises(TypeError, match="causal must be given for a batch or a layout: causal=True for"):
            build_packing_attention_bias(where, torch.float32, "cpu")


def test_out_is_written_whatever_was_there(two_rows):
    expected = build_packing_attention_bias(two_rows, torch.bfloat16, "cpu", causal=False)
    for where in (two_rows, {"layout": two_rows}, torch.from_numpy(two_rows.sequence_ids())):
        out = torch.full((2, 1, 16, 16), 7.0, dtype=torch.bfloat16)
        assert build_packing_attention_bias(where, torch.bfloat16, "cpu", causal=False, out=out) is out
        assert torch.equal(out, expected)
    apart = torch.tensor([[0, 1, 0]])
    out = torch.full((1, 1, 3, 3), 7.0)
    assert build_packing_attention_bias(apart, torch.float32, "cpu", out=out) is out
    assert torch.equal(out, build_packing_attention_bias(apart, torch.float32, "cpu"))
    for wrong in (out[:, :, :2], out.double(), torch.empty(1, 1, 3, 6)[..., ::2], out.to("meta")):
        with pytest.raises(ValueError, match="out must be"):
            build_packing_attention_bias(apart, torch.float32, "cpu", out=wrong)


@given(st.lists(st.from_type(PackLayout), min_size=2, max_size=4), st.booleans(), WINDOWS)
def test_a_buffer_gives_every_batch_its_own_bias(layouts, causal, window):
    """Batches of fewer rows come between others."""
    buffer = AttentionBiasBuffer(3, 90, torch.bfloat16, causal=causal, window=window)
    memory = set()
    for layout in layouts:
        wide = PackLayout.of_rows(layout.rooms, layout.row_ends, 90)
        bias = buffer.build(wide)
        expected = build_packing_attention_bias(wide, torch.bfloat16, "cpu", causal=causal, window=window)
        assert torch.equal(bias, expected)
        memory.add(bias.data_ptr())
    assert len(memory) == 1


def test_a_buffer_tells_autograd_that_the_bias_is_gone(two_rows):
    buffer = AttentionBiasBuffer(2, 16, torch.float32, causal=False)
    scale = torch.ones(1, requires_grad=True)
    loss = (scale * buffer.build(two_rows)).clamp(min=-1).sum()
    buffer.build(two_rows)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_buffer_works_without_autograd(two_rows):
    with torch.inference_mode():
        bias = AttentionBiasBuffer(2, 16, torch.float32, causal=False).build(two_rows)
    assert torch.equal(bias, build_packing_attention_bias(two_rows, torch.float32, "cpu", causal=False))


def test_what_a_buffer_cannot_hold_is_refused(two_rows):
    for buffer in (
        AttentionBiasBuffer(1, 16, torch.float32, causal=True),
        AttentionBiasBuffer(2, 17, torch.float32, causal=True),
    ):
        with pytest.raises(ValueError, match="make one of the size"):
            buffer.build(two_rows)


def test_bias_needs_a_type_with_infinity(two_rows):
    with pytest.raises(ValueError, match="dtype"):
        build_packing_attention_bias(torch.zeros(1, 2), torch.int64, "cpu")
    with pytest.raises(ValueError, match="dtype"):
        AttentionBiasBuffer(1, 2, torch.int64, causal=True)
    with pytest.raises(ValueError, match="sequence_ids"):
        build_packing_attention_bias(torch.zeros(1, 2, 3), torch.float32, "cpu")


def test_large_memory_goes_with_the_last_tensor_that_uses_it(monkeypatch):
    taken = []

    class Watched(mmap.mmap):
        def __new__(cls, *args, **kwargs):
            memory = super().__new__(cls, *args, **kwargs)
            taken.append(weakref.ref(memory))
            return memory

    monkeypatch.setattr(mmap, "mmap", Watched)
    tensor = allocate((3, 1, 1 << 20), torch.bfloat16)
    assert tensor.shape == (3, 1, 1 << 20)
    assert tensor.dtype == torch.bfloat16
    tensor[:] = 2
    part = tensor[2:, :, -2:]
    del tensor
    assert part.tolist() == [[[2, 2]]]
    assert taken[0]() is not None
    del part
    assert taken[0]() is None


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu(two_rows, causal, window):
    choices = {"causal": causal, "window": window}
    expected = build_packing_attention_bias(two_rows, torch.bfloat16, "cpu", **choices)
    labels = torch.from_numpy(two_rows.sequence_ids())
    for where in (two_rows, labels, labels.cuda()):
        bias = build_packing_attention_bias(where, torch.bfloat16, "cuda", **choices)
        assert bias.is_cuda
        assert torch.equal(bias.cpu(), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_large_masks_are_the_same_for_any_number_of_threads(causal, num_threads):
    layouts = [
        PackLayout.of_rows(np.array(lengths), np.array([2, 5]), 2048)
        for lengths in ([2000, 48, 1, 700, 1300], [3, 1024, 1025, 1, 1000])
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        buffer = AttentionBiasBuffer(2, 2048, torch.float32, causal=causal)
        out = torch.full((2, 1, 2048, 2048), 7.0)
        for layout in layouts:
            labels = torch.from_numpy(layout.sequence_ids())
            expected = seqpack.masking.build_packing_attention_bias(labels, torch.float32, "cpu")
            if causal:
                expected = expected.masked_fill(torch.ones(2048, 2048, dtype=torch.bool).triu(1), -torch.inf)
            assert torch.equal(build_packing_attention_bias(layout, torch.float32, "cpu", causal=causal), expected)
            build_packing_attention_bias(layout, torch.float32, "cpu", causal=causal, out=out)
            assert torch.equal(out, expected)
            assert torch.equal(buffer.build(layout), expected)
    finally:
        torch.set_num_threads(before)


WIDE_WINDOWS = st.none() | st.integers(1, 100)


@given(st.from_type(PackLayout), st.booleans(), WIDE_WINDOWS, st.booleans(), st.booleans())
def test_true_where_attention_is_allowed(allowed_pairs, layout, causal, window, head_dim, mask_padding):
    mask = build_boolean_mask(layout, "cpu", causal=causal, window=window, head_dim=head_dim, mask_padding=mask_padding)
    expected = torch.from_numpy(allowed_pairs(layout, causal=causal, window=window, mask_padding=mask_padding))
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected[:, None] if head_dim else expected)
    assert mask_padding or mask.any(-1).all()


@given(st.from_type(PackLayout), st.booleans(), WIDE_WINDOWS)
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
def test_booleans_on_a_gpu(two_rows, causal, window, mask_padding):
    choices = {"causal": causal, "window": window, "mask_padding": mask_padding}
    mask = build_boolean_mask(two_rows, "cuda", **choices)
    assert torch.equal(mask.cpu(), build_boolean_mask(two_rows, "cpu", **choices))
    assert torch.equal(build_labelled_mask(two_rows, "cuda").cpu(), build_labelled_mask(two_rows, "cpu"))
