"""Layouts against loops over rows."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.batches.layout import OverfullRowError, PackLayout, as_layout


@st.composite
def rows(draw):
    """(L, rows of (tokens, place))."""
    row_tokens = draw(st.integers(1, 20))
    result = []
    for _ in range(draw(st.integers(0, 5))):
        row, free = [], row_tokens
        for place in draw(st.lists(st.integers(1, row_tokens), max_size=6)):
            if place <= free:
                row.append((draw(st.integers(1, place)), place))
                free -= place
        result.append(row)
    return row_tokens, result


def layout_of(row_tokens, rows):
    flat = [pair for row in rows for pair in row]
    return PackLayout.of_rows(
        np.array([place for _, place in flat], np.int32),
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        row_tokens,
        lengths=np.array([tokens for tokens, _ in flat], np.int64),
    )


@given(rows())
def test_everything_equals_a_loop_over_rows(case):
    row_tokens, rows = case
    layout = layout_of(row_tokens, rows)
    labels, is_token, starts = [], [], []
    for r, row in enumerate(rows):
        row_labels, row_is_token, free = [], [], len(row) + 1
        for label, (tokens, place) in enumerate(row):
            starts.append(r * row_tokens + len(row_labels))
            row_labels += [label] * tokens + [free] * (place - tokens)
            free += tokens < place
            row_is_token += [1] * tokens + [0] * (place - tokens)
        left = row_tokens - len(row_labels)
        labels.append(row_labels + [len(row)] * left)
        is_token += row_is_token + [0] * left
    lengths = [tokens for row in rows for tokens, _ in row]
    total = row_tokens * len(rows)

    assert layout.sequence_ids().tolist() == labels
    assert layout.starts.tolist() == starts
    assert layout.num_sequences == len(lengths)
    assert layout.num_tokens == sum(lengths)
    assert layout.max_seqlen == max(lengths, default=0)
    assert layout.cu_seqlens.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert layout.cu_seqlens_padded.tolist() == [*starts, total]
    assert layout.cu_seqlens.dtype == layout.cu_seqlens_padded.dtype == layout.segments.dtype == np.int32

    bounds = {r * row_tokens for r in range(len(rows) + 1)}
    for start, (tokens, place) in zip(starts, [pair for row in rows for pair in row], strict=True):
        bounds |= {start, start + tokens, start + place}
    assert layout.segments.tolist() == sorted(bounds)

    padding = [0] * total
    for start, end in layout.padding_ranges:
        assert start < end
        padding[start:end] = [1] * (end - start)
    assert padding == [1 - token for token in is_token]


@given(rows())
def test_flattened_has_the_same_sequences_and_no_padding(case):
    layout = layout_of(*case)
    flat = layout.flattened()
    assert flat.lengths.tolist() == layout.lengths.tolist()
    assert flat.cu_seqlens.tolist() == layout.cu_seqlens.tolist()
    assert (flat.num_rows, flat.row_tokens) == (1, max(layout.num_tokens, 1))
    assert flat.padding_ranges == ([] if layout.num_tokens else [(0, 1)])
    assert flat.segments.tolist() == (flat.cu_seqlens.tolist() if layout.num_tokens else [0, 1])


@given(rows(), st.integers(1, 4))
def test_parts_are_the_layouts_of_their_rows(case, num_rows):
    row_tokens, rows = case
    parts = layout_of(row_tokens, rows).split(num_rows)
    alone = [layout_of(row_tokens, rows[first : first + num_rows]) for first in range(0, len(rows), num_rows)]
    assert parts == alone
    for part, layout in zip(parts, alone, strict=True):
        for mine, expected in ((part, layout), (part.flattened(), layout.flattened())):
            assert mine == expected
            assert (mine.num_tokens, mine.max_seqlen) == (expected.num_tokens, expected.max_seqlen)
            for name in ("cu_seqlens", "extent_labels", "segments"):
                array = getattr(mine, name)
                assert array.dtype == np.int32
                assert array.tolist() == getattr(expected, name).tolist()
            assert mine.sequence_ids().tolist() == expected.sequence_ids().tolist()
            is_padding = np.zeros((2, mine.num_rows * mine.row_tokens), dtype=np.bool_)
            for row, spans in zip(is_padding, (mine.padding_ranges, expected.padding_ranges), strict=True):
                for start, end in spans:
                    assert start < end
                    row[start:end] = True
            assert is_padding[0].tolist() == is_padding[1].tolist()


@given(rows())
def test_flattened_is_the_layout_of_one_full_row(case):
    layout = layout_of(*case)
    tokens = max(layout.num_tokens, 1)
    flat, expected = layout.flattened(), PackLayout.of_rows(layout.lengths, [layout.num_sequences], tokens)
    assert flat == expected
    for name in ("num_tokens", "max_seqlen", "padding_ranges"):
        assert getattr(flat, name) == getattr(expected, name)
    for name in ("cu_seqlens", "extent_labels"):
        assert getattr(flat, name).tolist() == getattr(expected, name).tolist()


@given(rows())
def test_pickle_carries_the_fields_and_nothing_else(case):
    layout = layout_of(*case)
    bare = pickle.dumps(layout)
    assert layout.segments is layout.segments
    assert layout.sequence_ids().size == layout.num_rows * layout.row_tokens
    assert len(pickle.dumps(layout)) == len(bare)
    assert pickle.loads(bare) == layout


def test_layouts_differ_where_a_field_does():
    layout = layout_of(8, [[(3, 4)], [(2, 2)]])
    assert layout != layout_of(8, [[(4, 4)], [(2, 2)]])
    assert layout != layout_of(9, [[(3, 4)], [(2, 2)]])
    assert layout != "layout"


def test_overfull_row_is_refused():
    with pytest.raises(OverfullRowError, match="row 1 holds 5 tokens, more than its 4"):
        PackLayout.of_rows(np.array([4, 2, 3]), np.array([1, 3]), 4)


def test_as_layout_takes_what_there_is():
    layout = layout_of(8, [[(3, 3), (5, 5)]])
    assert as_layout(layout) is layout
    assert as_layout({"layout": layout}) is layout
    assert as_layout(torch.tensor([0, 3, 8], dtype=torch.int32)) == as_layout(np.array([0, 3, 8])) == layout
    with pytest.raises(ValueError, match="no 'layout'"):
        as_layout({"input_ids": 1})


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 3, 2], [[0, 1]]])
def test_offsets_that_are_none_are_refused(offsets):
    with pytest.raises(ValueError, match="ascending offsets that begins with 0"):
        as_layout(np.array(offsets, dtype=np.int64))


def test_offsets_on_a_device_are_refused():
    with pytest.raises(ValueError, match=r"are on meta.*layout"):
        as_layout(torch.zeros(3, device="meta"))
