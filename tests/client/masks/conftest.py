"""What the tests of masks share: layouts to try, and which pairs may attend, pair by pair."""

import numpy as np
import pytest
from hypothesis import strategies as st

from packhorse.client.batches.layout import PackLayout


@st.composite
def layouts(draw):
    """Up to three rows of up to 90 tokens, some full, some empty, places with padding among them."""
    row_tokens = draw(st.integers(1, 90))
    places, lengths, row_ends = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        free = row_tokens
        for wanted in draw(st.lists(st.integers(1, row_tokens), max_size=8)):
            place = min(wanted, free)
            if place:
                places.append(place)
                lengths.append(draw(st.integers(1, place)))
                free -= place
        row_ends.append(len(places))
    return PackLayout.of_rows(
        np.array(places, np.int64), np.array(row_ends), row_tokens, lengths=np.array(lengths, np.int64)
    )


st.register_type_strategy(PackLayout, layouts())
"""Tests say `st.from_type(PackLayout)`."""


def pairs(layout, *, causal=False, window=None, mask_padding=False):
    """Bool [B, L, L]: whether the query may attend to the key."""
    labels = layout.sequence_ids()
    is_token = np.zeros(labels.size, dtype=bool)
    for start, length in zip(layout.starts, layout.lengths, strict=True):
        is_token[start : start + length] = True
    is_token = is_token.reshape(labels.shape)
    query, key = np.mgrid[: layout.row_tokens, : layout.row_tokens]
    allowed = labels[:, :, None] == labels[:, None, :]
    if causal:
        allowed &= query >= key
    if window is not None:
        allowed &= abs(query - key) < window
    if mask_padding:
        allowed &= is_token[:, :, None] & is_token[:, None, :]
    return allowed


@pytest.fixture(scope="session")
def allowed_pairs():
    return pairs


@pytest.fixture(scope="session")
def two_rows():
    """Sequences of 5, 1 and 7 tokens, the last in a room of 8; then of 4 and 6. Rows have 16."""
    return PackLayout.of_rows(np.array([5, 1, 8, 4, 6]), np.array([3, 5]), 16, lengths=np.array([5, 1, 7, 4, 6]))
