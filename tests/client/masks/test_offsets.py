"""Offsets from the plan and from labels against a plain scan; tensors without padding, and back."""

import numpy as np
import pytest
import seqpack.masking
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils._python_dispatch import TorchDispatchMode

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import build_packing_cu_seqlens, build_unpadding, build_varlen_offsets
from packhorse.client.masks.label_offsets import _scan_device

SHAPES = hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=12)


@st.composite
def labels_and_mask(draw):
    shape = draw(SHAPES)
    labels = draw(hnp.arrays(draw(st.sampled_from([np.int32, np.int64])), shape, elements=st.integers(-1, 3)))
    mask = draw(hnp.arrays(draw(st.sampled_from([np.bool_, np.int64])), shape, elements=st.integers(0, 1)))
    return torch.from_numpy(labels), torch.from_numpy(mask) if draw(st.booleans()) else None


def scan_as_devices_do(labels, mask):
    return _scan_device(labels if labels.dim() == 2 else labels[None], mask)


@pytest.mark.parametrize("scan", [build_packing_cu_seqlens, scan_as_devices_do])
@settings(max_examples=200)
@given(case=labels_and_mask())
def test_scanned_offsets_are_seqpacks(scan, case):
    labels, mask = case
    ours, our_longest = scan(labels, mask)
    theirs, their_longest = seqpack.masking.build_packing_cu_seqlens(labels, mask)
    assert ours.dtype == torch.int32
    assert ours.tolist() == theirs.tolist()
    assert our_longest == their_longest
    assert type(our_longest) is int


def test_scanned_offsets_of_masked_hole_and_of_rows():
    labels = torch.tensor([[5, 5, 7, 5, 5, 6], [6, 6, 6, 6, 6, 6]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    cu_seqlens, max_seqlen = build_packing_cu_seqlens(labels, mask)
    assert cu_seqlens.tolist() == [0, 4, 5, 8]
    assert max_seqlen == 4
    assert build_packing_cu_seqlens(torch.zeros(2, 0, dtype=torch.int32))[0].tolist() == [0]
    with pytest.raises(ValueError, match="attention_mask"):
        build_packing_cu_seqlens(labels, mask.T)
    with pytest.raises(ValueError, match="sequence_ids"):
        build_packing_cu_seqlens(labels[None])


def test_scanning_a_device_reads_no_data_before_the_end():
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
        _scan_device(torch.tensor([[0, 0, 1, 2]]), torch.tensor([[1, 1, 1, 0]]))
    waiting = {"aten::nonzero", "aten::masked_select", "aten::_local_scalar_dense", "aten::_unique2"}
    assert not waiting & set(record.names)
    assert "aten::scatter_.src" in record.names  # the recorder sees the work at all


@given(st.from_type(PackLayout), st.none() | st.integers(0, 3), st.none() | st.integers(0, 5))
def test_the_plans_offsets_with_room_for_more(layout, num_more, longer):
    offsets = build_varlen_offsets(
        layout,
        "cpu",
        num_sequences=None if num_more is None else layout.num_sequences + num_more,
        max_seqlen=None if longer is None else layout.max_seqlen + longer,
    )
    more = num_more or 0
    total = layout.num_rows * layout.row_tokens
    assert offsets.cu_seqlens.dtype == offsets.cu_seqlens_padded.dtype == torch.int32
    assert offsets.cu_seqlens.tolist() == [0, *layout.lengths.cumsum()] + [layout.lengths.sum()] * more
    assert offsets.cu_seqlens_padded.tolist() == [*layout.starts, total] + [total] * more
    assert offsets.max_seqlen == max(layout.lengths, default=0) + (longer or 0)
    assert type(offsets.max_seqlen) is int


def test_the_plans_offsets_are_those_that_scanning_finds(two_rows):
    mask = torch.zeros(32, dtype=torch.bool)
    for start, length in zip(two_rows.starts, two_rows.lengths, strict=True):
        mask[start : start + length] = True
    scanned, longest = build_packing_cu_seqlens(torch.from_numpy(two_rows.sequence_ids()), mask.view(2, 16))
    offsets = build_varlen_offsets({"layout": two_rows}, "cpu")
    assert offsets.cu_seqlens.tolist() == scanned.tolist() == [0, 5, 6, 13, 17, 23]
    assert offsets.cu_seqlens_padded.tolist() == [0, 5, 6, 16, 20, 32]
    assert offsets.max_seqlen == longest == 7


def test_a_batch_beyond_the_static_size_is_refused(two_rows):
    with pytest.raises(ValueError, match="5 sequences, more than num_sequences 4"):
        build_varlen_offsets(two_rows, "cpu", num_sequences=4)
    with pytest.raises(ValueError, match="7 tokens, more than max_seqlen 6"):
        build_varlen_offsets(two_rows, "cpu", max_seqlen=6)


def test_writing_to_offsets_leaves_the_layout_alone(two_rows):
    build_varlen_offsets(two_rows, "cpu").cu_seqlens.zero_()
    assert two_rows.cu_seqlens.tolist() == [0, 5, 6, 13, 17, 23]


@pytest.mark.gpu
def test_on_a_gpu(two_rows):
    offsets = build_varlen_offsets(two_rows, "cuda", num_sequences=7)
    assert offsets.cu_seqlens.is_cuda
    assert offsets.cu_seqlens.tolist() == [0, 5, 6, 13, 17, 23, 23, 23]
    labels = torch.from_numpy(two_rows.sequence_ids())
    for mask in (None, labels >= 0):
        on_host, on_gpu = (build_packing_cu_seqlens(each, mask) for each in (labels, labels.cuda()))
        assert on_gpu[0].is_cuda
        assert (on_gpu[0].tolist(), on_gpu[1]) == (on_host[0].tolist(), on_host[1])


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
