"""No builder reads anything back from the device it builds for."""

import pytest
import torch

from packhorse.client import masks

BUILDERS = {
    "bias": lambda layout, device: masks.build_packing_attention_bias(layout, torch.bfloat16, device, causal=True),
    "bias of labels": lambda layout, device: masks.build_packing_attention_bias(
        torch.from_numpy(layout.sequence_ids()), torch.bfloat16, device, window=3
    ),
    "boolean": lambda layout, device: masks.build_boolean_mask(layout, device, causal=True, window=3),
    "boolean without padding": lambda layout, device: masks.build_boolean_mask(
        layout, device, causal=False, mask_padding=True
    ),
    "labelled": masks.build_labelled_mask,
    "block mask": lambda layout, device: (
        masks.build_block_mask(layout, device, causal=True, block_size=8, window=3).kv_indices
    ),
    "offsets": lambda layout, device: masks.build_varlen_offsets(layout, device, num_sequences=8).cu_seqlens,
    "unpadding": lambda layout, device: masks.build_unpadding(layout, device).indices,
    "unpad": lambda layout, device: masks.build_unpadding(layout, device).unpad(torch.empty(2, 16, device=device)),
    "pad": lambda layout, device: masks.build_unpadding(layout, device).pad(torch.empty(23, device=device)),
}


def test_every_builder_that_takes_a_device_is_tried():
    taking = [name for name in masks.__all__ if "device" in getattr(masks, name).__annotations__]
    known = {"bias": "build_packing_attention_bias", "boolean": "build_boolean_mask", "labelled": "build_labelled_mask"}
    known |= {"block mask": "build_block_mask", "offsets": "build_varlen_offsets", "unpadding": "build_unpadding"}
    assert sorted(known.values()) == sorted(taking)
    assert known.keys() <= BUILDERS.keys()


@pytest.mark.parametrize("builder", BUILDERS)
def test_shapes_are_known_without_data(two_rows, builder):
    """A meta device has shapes and no data: reading any raises."""
    on_meta = BUILDERS[builder](two_rows, "meta")
    on_host = BUILDERS[builder](two_rows, "cpu")
    assert on_meta.device.type == "meta"
    assert (on_meta.shape, on_meta.dtype) == (on_host.shape, on_host.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_gpu_is_not_waited_for(two_rows, builder):
    BUILDERS[builder](two_rows, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        BUILDERS[builder](two_rows, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
