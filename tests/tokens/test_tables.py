"""From ids to rows: against a dict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.sources import TokenSourceError
from packhorse.tokens.tables.row_lookup import RowLookup


@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=20), other=st.integers(-50, 50), data=st.data()
)
def test_rows_of_ids(ids, other, data):
    rows = {sequence_id: row for row, sequence_id in enumerate(ids)}
    lookup = RowLookup("x", len(ids), np.array(ids, np.int64))
    asked = data.draw(st.lists(st.sampled_from(ids), max_size=10)) if ids else []
    found = lookup.rows(np.array(asked, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [rows[sequence_id] for sequence_id in asked]
    if other not in rows:
        with pytest.raises(TokenSourceError, match=f"x: no sequence with id {other}; its {len(ids)} ids"):
            lookup.rows(np.array([*asked, other]))


@given(ids=st.lists(st.integers(0, 30), min_size=1, max_size=20))
def test_repeated_ids_are_refused_with_their_rows(ids):
    if len(set(ids)) == len(ids):
        assert RowLookup("x", len(ids), np.array(ids)).rows(np.array(ids)).tolist() == list(range(len(ids)))
        return
    with pytest.raises(TokenSourceError, match="both have the id") as refused:
        RowLookup("x", len(ids), np.array(ids))
    words = str(refused.value).split()
    first, second, repeated = int(words[2]), int(words[4]), int(words[9].rstrip(";"))
    assert first < second
    assert ids[first] == ids[second] == repeated


def test_row_numbers():
    lookup = RowLookup("x", 3)
    assert lookup.rows(np.array([2, 0])).tolist() == [2, 0]
    for missing in (-1, 3):
        with pytest.raises(TokenSourceError, match=f"no sequence with id {missing}; it holds ids 0 to 2"):
            lookup.rows(np.array([0, missing]))
