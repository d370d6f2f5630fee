"""Objects that answer `obj[id]`: what an item may be, and that each is read once."""

import numpy as np
import pytest

from packhorse.client.sources import IndexableSource, TokenSourceError, as_token_source


def test_items_that_are_not_tokens(gather):
    for item in ([0.5, 1.0], [[1, 2]], 3, "ab"):
        with pytest.raises(TokenSourceError, match=r"sequence 0: .*1-D list of integers"):
            gather(IndexableSource([item]), [0], [2])
    with pytest.raises(TokenSourceError, match=r"keys \['a', 'b'\].*key="):
        gather(IndexableSource([{"b": 0, "a": 1}]), [0], [2])
    with pytest.raises(TokenSourceError, match="no key 'c'"):
        gather(IndexableSource([{"b": 0, "a": 1}], key="c"), [0], [2])
    with pytest.raises(TokenSourceError, match="sequence 0: the plan says 2 tokens, the source holds 0"):
        gather(IndexableSource([[]]), [0], [2])
    with pytest.raises(TokenSourceError, match="__getitem__"):
        as_token_source(3)


def test_an_empty_list_is_no_tokens_of_an_integer_type():
    assert IndexableSource([[]]).read(0).dtype.kind == "i"
    assert IndexableSource([np.zeros(0, dtype=np.uint16)]).read(0).dtype == np.uint16


def test_mapping_may_have_any_ids(gather):
    assert gather(IndexableSource({-3: [1, 2], 2**40: [5]}), [2**40, -3], [1, 2]) == [[5], [1, 2]]


class Counted:
    """Ten sequences of one token that count how often they are read."""

    def __init__(self):
        self.reads = []

    def __getitem__(self, i):
        self.reads.append(i)
        return [i + len(self.reads) * 100]


def test_lengths_and_gather_read_each_item_once(gather):
    counted = Counted()
    source = IndexableSource(counted)
    assert source.lengths(np.array([3, 7])).tolist() == [1, 1]
    assert gather(source, [7, 3, 8, 8], [1] * 4) == [[207], [103], [308], [308]]
    assert counted.reads == [3, 7, 8]
    assert gather(source, [3], [1]) == [[403]]  # nothing is held beyond a batch


def test_refused_batch_leaves_nothing_held(gather):
    counted = Counted()
    source = IndexableSource(counted)
    source.lengths(np.array([3]))
    with pytest.raises(TokenSourceError, match="sequence 3: the plan says 2"):
        gather(source, [3], [2])
    assert gather(source, [3], [1]) == [[3 + 100 * len(counted.reads)]]
    assert len(counted.reads) > 1
