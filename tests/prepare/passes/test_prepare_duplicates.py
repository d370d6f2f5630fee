"""Windows over ids: they cover every id once, hold few enough, and find exactly the repeated ones."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.prepare.passes.duplicates import cut_windows, find_duplicate


@settings(max_examples=150)
@given(
    st.lists(
        st.lists(st.integers(-20, 60) | st.sampled_from([-(2**63), 2**63 - 1, 2**32]), min_size=1, max_size=15),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 8),
)
def test_windows_find_the_smallest_duplicate(segments: list[list[int]], window_ids: int) -> None:
    ids = [identity for segment in segments for identity in sorted(segment)]
    edges = np.cumsum([0, *map(len, segments)]).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "pools.npy")
        np.save(path, np.array(ids, dtype=np.int64))
        windows = list(cut_windows(path, edges, min(ids), max(ids), window_ids))
        found = [duplicate for window in windows if (duplicate := find_duplicate(window)) is not None]
    assert all(a.high < b.low for a, b in pairwise(windows))
    for window in windows:
        assert window.num_ids == sum(window.low <= identity <= window.high for identity in ids)
        assert window.num_ids <= window_ids or window.low == window.high
    repeated = sorted({identity for identity in ids if ids.count(identity) > 1})
    assert found[:1] == repeated[:1]
    assert set(found) <= set(repeated)
