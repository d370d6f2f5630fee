"""Bands of distances, and prefixes that several sequences see, against a plain loop over all pairs of tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import PackLayout, get_preset
from packhorse.client.masks import (
    AttentionBiasBuffer,
    build_block_diagonal_mask,
    build_block_mask,
    build_boolean_mask,
    build_labelled_mask,
    build_packing_attention_bias,
    build_varlen_offsets,
)
from packhorse.client.masks._band import Band, pairs_of_equals
from packhorse.client.masks.labelled import token_labels
from packhorse.client.masks.prefixes import with_prefixes
from packhorse.client.masks.token_index import segment_index

ROW_TOKENS = 24


@st.composite
def layouts(draw):
    """Rows of groups, some sequences of none, some rooms with padding."""
    rooms, lengths, groups, row_ends, number = [], [], [], [], 0
    for _ in range(draw(st.integers(1, 3))):
        left = ROW_TOKENS
        while left and draw(st.integers(0, 5)):
            size = draw(st.integers(1, 3))
            is_group = size > 1 or draw(st.booleans())
            number += 1
            for _ in range(size):
                room = draw(st.integers(1, 6))
                if room > left:
                    break
                left -= room
                rooms.append(room)
                lengths.append(max(1, room - draw(st.integers(0, 1))))
                groups.append(number if is_group else -1)
        row_ends.append(len(rooms))
    layout = PackLayout.of_rows(
        np.array(rooms, dtype=np.int64),
        np.array(row_ends),
        ROW_TOKENS,
        lengths=np.array(lengths, dtype=np.int64),
        group_ids=np.array(groups, dtype=np.int64),
        shared_prefix=True,
    )
    return draw(st.sampled_from([layout, layout.flattened()])) if rooms else layout


def allowed(layout, causal, mask_padding=False):
    """Which token sees which, by the definition: bool [B, L, L]."""
    expected = np.zeros((layout.num_rows, layout.row_tokens, layout.row_tokens), dtype=bool)
    spans = [(start, start + n) for start, n in zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)]
    segments = (
        spans if mask_padding else list(zip(layout.segments[:-1].tolist(), layout.segments[1:].tolist(), strict=True))
    )
    for start, end in segments:
        row, first = divmod(start, layout.row_tokens)
        size = end - start
        block = np.tri(size, dtype=bool) if causal else np.ones((size, size), dtype=bool)
        expected[row, first : first + size, first : first + size] = block
    prefix_of = {}
    rows = np.searchsorted(layout.row_ends, np.arange(len(spans)), side="right").tolist()
    for i, group in enumerate(layout.group_ids.tolist()):
        if group < 0:
            continue
        if (rows[i], group) in prefix_of:
            prefix = spans[prefix_of[rows[i], group]]
            offset = rows[i] * layout.row_tokens
            expected[rows[i], spans[i][0] - offset : spans[i][1] - offset, prefix[0] - offset : prefix[1] - offset] = (
                True
            )
        else:
            prefix_of[rows[i], group] = i
    return expected


def test_dense_masks_show_prefixes():
    @given(layouts(), st.booleans(), st.booleans())
    @settings(max_examples=60)
    def check(layout, causal, mask_padding):
        expected = torch.from_numpy(allowed(layout, causal, mask_padding))
        mask = build_boolean_mask(layout, "cpu", causal=causal, head_dim=False, mask_padding=mask_padding)
        assert torch.equal(mask, expected)
        band, device = Band.of(causal=causal, window=None), torch.device("cpu")
        labels = token_labels(layout, device) if mask_padding else segment_index(layout, device)
        pairs = pairs_of_equals(labels, band) & ((labels != 0) | (not mask_padding))[:, :, None]
        assert torch.equal(with_prefixes(pairs, layout), expected)  # as it is computed on a device
        if not mask_padding:
            bias = build_packing_attention_bias(layout, torch.float32, "cpu", causal=causal)
            assert torch.equal(bias[:, 0] == 0, expected)

    check()


def test_a_buffer_forgets_the_prefixes_of_the_batch_before():
    @given(layouts(), layouts())
    @settings(max_examples=30)
    def check(first, second):
        if ROW_TOKENS not in (first.row_tokens, second.row_tokens) or first.row_tokens != second.row_tokens:
            return
        buffer = AttentionBiasBuffer(3, ROW_TOKENS, torch.float32, causal=True)
        for layout in (first, second, first):
            assert torch.equal(buffer.build(layout)[:, 0] == 0, torch.from_numpy(allowed(layout, True)))

    check()


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_mask_shows_prefixes(causal):
    layout = PackLayout.of_rows(
        np.array([40, 30, 50, 60, 20, 56]),
        np.array([4, 6]),
        256,
        group_ids=np.array([7, 7, 7, 8, 9, 9]),
        shared_prefix=True,
    )
    mask = build_block_mask(layout, "cpu", causal=causal, block_size=32)
    expected = allowed(layout, causal)
    index = torch.arange(256)
    for row in range(2):
        pairs = mask.mask_mod(torch.tensor(row), torch.tensor(0), index[:, None], index[None, :])
        assert torch.equal(pairs, torch.from_numpy(expected[row]))
    blocks = expected.reshape(2, 8, 32, 8, 32).any(axis=(2, 4))
    assert np.array_equal(mask.to_dense()[:, 0].numpy() > 0, blocks)


def test_what_knows_runs_alone_is_refused_in_words():
    layout = PackLayout.of_rows(np.array([2, 3]), np.array([2]), 5, group_ids=np.array([1, 1]), shared_prefix=True)
    for build in (
        lambda: build_varlen_offsets(layout, "cpu"),
        lambda: build_block_diagonal_mask(layout, causal=True),
        lambda: build_labelled_mask(layout, "cpu"),
        lambda: get_preset("rows").convert({"layout": layout}),
    ):
        with pytest.raises(ValueError, match=r"cannot show several of them one prefix .* build_block_mask"):
            build()
    for build in (build_boolean_mask, build_block_mask):
        with pytest.raises(ValueError, match="leave out window, or shared_prefix"):
            build(layout, "cpu", causal=True, window=2)


DISTANCES = np.arange(-12, 13)


@given(st.booleans(), st.none() | st.integers(1, 15))
def test_a_band_is_what_causal_and_window_say(causal, window):
    band = Band.of(causal=causal, window=window)
    expected = [not (causal and d < 0) and (window is None or abs(d) < window) for d in DISTANCES]
    assert band.allows(DISTANCES).tolist() == expected
    assert band.transposed().allows(-DISTANCES).tolist() == expected
    assert band.is_everything == (not causal and window is None)


def test_a_window_holds_the_token_itself():
    with pytest.raises(ValueError, match="window must be at least 1"):
        Band.of(causal=True, window=0)
