"""PackSequences with groups: each in one bin, in order, under every option that says where bins go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client._packing_answer import read_packing
from packhorse.client.errors import InvalidRequestError, VersionMismatchError
from packhorse.client.options import PackOptions
from packhorse.packing import lower_bound
from packhorse.v1 import packing_pb2 as pb


@pytest.fixture
def backend(embedded):
    return embedded._transport._backend


def test_groups_share_a_bin_in_their_order(embedded, backend):
    @given(st.data())
    @settings(max_examples=60)
    def check(data):
        num = data.draw(st.integers(1, 40))
        groups = np.array(data.draw(st.lists(st.integers(0, 15), min_size=num, max_size=num)))
        lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=num, max_size=num)))
        kinds = data.draw(st.sampled_from([None, groups % 3]))
        align, extra = data.draw(st.sampled_from([(1, 0), (4, 1)]))
        rooms = -(-(lengths + extra) // align) * align
        of_groups = {number: int(rooms[groups == number].sum()) for number in np.unique(groups).tolist()}
        capacity = max(of_groups.values()) + data.draw(st.integers(0, 30))
        options = {
            "num_bins_multiple_of": data.draw(st.sampled_from([1, 2, 3])),
            "packing": PackOptions(
                balance=data.draw(st.sampled_from(["none", "micro-step", "optimizer-step"])),
                algorithm=data.draw(st.sampled_from(["best-fit", "next-fit", "random-order"])),
                allow_empty=True,
            ),
        }
        bins = embedded.pack_sequences(
            lengths,
            capacity,
            groups=groups,
            separate_by=kinds,
            align=align,
            extra_tokens=extra,
            seed=3,
            **options,
        )
        assert sorted(i for one in bins for i in one.tolist()) == list(range(num))
        assert len(bins) % options["num_bins_multiple_of"] == 0
        came = []
        for one in bins:
            assert rooms[one].sum() <= capacity
            assert kinds is None or len(set(kinds[one].tolist())) <= 1
            numbers = groups[one]
            for number in dict.fromkeys(numbers.tolist()):
                at = np.flatnonzero(numbers == number)
                assert (np.diff(at) == 1).all()
                assert one[at].tolist() == np.flatnonzero(groups == number).tolist()
                came.append(number)
        assert len(came) == len(set(came))
        counts = {room: list(of_groups.values()).count(room) for room in of_groups.values()}
        assert len(bins) >= lower_bound(counts, capacity)

    check()


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"groups": [1]}, "groups", "groups holds 1 numbers for 3 lengths"),
        ({"groups": [1, 1, 1]}, "groups", "group 1 takes 12 tokens together, over max_seq_len 8"),
        (
            {"groups": [1, 1, 2], "packing": PackOptions(max_sequences_per_bin=4)},
            "max_sequences_per_bin",
            "does not go with groups",
        ),
        ({"groups": [1, 2, 1], "separate_by": [1, 2, 3]}, "separate_by", "several numbers for group 1"),
    ],
)
def test_what_cannot_be_is_refused_by_field(embedded, options, field, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        embedded.pack_sequences([4, 4, 4], 8, **options)
    assert caught.value.metadata["field"] == field


def test_a_server_that_ignores_groups_is_noticed(backend):
    request = pb.PackSequencesRequest(lengths=[4, 3, 4, 3], max_seq_len=8, groups=[1, 2, 2, 1])
    assert len(read_packing(backend.pack_sequences(request), request)) == 2
    without = pb.PackSequencesRequest(lengths=[4, 3, 4, 3], max_seq_len=8)
    with pytest.raises(VersionMismatchError, match="too old for groups"):
        read_packing(backend.pack_sequences(without), request)
