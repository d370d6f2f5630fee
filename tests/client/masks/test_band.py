"""Causal, bidirectional and sliding windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.masks._band import Band

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
