"""PackStream with groups: each in one bin, in order, whole through every message, flush and break."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import PackStream, RetryPolicy
from packhorse.client.errors import DamagedAnswerError, InvalidRequestError, ServerUnavailableError
from packhorse.client.streams import pack_stream
from packhorse.server.methods.on_demand.pack_stream import PackSession
from packhorse.v1 import packing_pb2 as pb

CAPACITY = 60


@pytest.fixture(params=["client", "embedded"])
def either(request):
    """A client of a server, then one without."""
    return request.getfixturevalue(request.param)


def check_groups(bins, groups, lengths, align=1, extra=0):
    """Checks bins of ids that count sequences from 0: all are there, and each group is whole in one bin, in order."""
    rooms = -(-(np.array(lengths) + extra) // align) * align
    assert sorted(i for ids, _ in bins for i in ids.tolist()) == list(range(len(lengths)))
    runs = []
    for ids, held in bins:
        assert held.tolist() == [lengths[i] for i in ids]
        assert rooms[ids].sum() <= CAPACITY
        runs += [[group, *members] for group, members in itertools.groupby(ids.tolist(), lambda i: groups[i])]
    assert sorted(run[1:] for run in runs) == sorted(
        [i for i, other in enumerate(groups) if other == group] for group in set(groups)
    )


@st.composite
def cases(draw):
    """Calls as lists of (group, length), with groups that fit bins; and options of a stream."""
    align, extra = draw(st.sampled_from([(1, 0), (4, 1)]))
    lengths = st.lists(st.integers(1, 14), min_size=1, max_size=3)  # 16 tokens each with align and extra_tokens
    calls = draw(st.lists(st.lists(lengths, min_size=1, max_size=8), min_size=1, max_size=5))
    options = {
        "lookahead_sequences": draw(st.integers(1, 9)),
        "num_bins_multiple_of": draw(st.sampled_from([1, 2, 3])),
        "balance": draw(st.sampled_from(["none", "micro-step"])),
        "align": align,
        "extra_tokens": extra,
    }
    shuffled = []
    for call in calls:
        rows = [(group, length) for group, members in enumerate(call) for length in members]
        shuffled.append(draw(st.permutations(rows)))
    return shuffled, options


def test_groups_leave_whole(embedded):
    @given(cases())
    @settings(max_examples=80)
    def check(case):
        calls, options = case
        bins, groups, lengths = [], [], []
        with embedded.pack_stream(CAPACITY, allow_empty=True, **options) as stream:
            for number, rows in enumerate(calls):
                ids = range(len(lengths), len(lengths) + len(rows))
                lengths += [length for _, length in rows]
                groups += [(number, group) for group, _ in rows]
                bins += stream.send(ids, lengths[ids.start :], groups=[group for group, _ in rows])
                if options["num_bins_multiple_of"] == 1:
                    assert stream.num_held <= options["lookahead_sequences"]
            bins += stream.flush()
            assert stream.num_held == 0
        assert len(bins) % options["num_bins_multiple_of"] == 0
        check_groups(bins, groups, lengths, options["align"], options["extra_tokens"])

    check()


def test_a_server_and_none_give_the_same_bins(client, embedded):
    random = np.random.default_rng(4)
    lengths, groups = random.integers(1, 20, 900), np.repeat(np.arange(300), 3)

    def bins(one):
        with one.pack_stream(CAPACITY, lookahead_sequences=64) as stream:
            made = stream.send(range(900), lengths, groups) + stream.flush()
        check_groups(made, groups.tolist(), lengths.tolist())
        return [(ids.tolist(), held.tolist()) for ids, held in made]

    assert bins(client) == bins(embedded)


def test_a_message_ends_between_groups(embedded, monkeypatch):
    monkeypatch.setattr(pack_stream, "SEQUENCES_PER_MESSAGE", 4)
    groups = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 4]
    with embedded.pack_stream(CAPACITY, lookahead_sequences=3) as stream:
        bins = stream.send(range(14), [5] * 14, groups) + stream.flush()
    check_groups(bins, groups, [5] * 14)


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({}, [1], "groups: holds 1 numbers for 3 ids"),
        ({}, [1, 2, 1], "groups: group 1 takes 62 tokens together, over max_seq_len 60"),
        ({"align": 32}, [1, 2, 1], "groups: group 1 takes 64 tokens together, over max_seq_len 60"),
        ({"max_sequences_per_bin": 3}, [1, 1, 2], "groups: max_sequences_per_bin does not go with groups"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_kept(embedded, options, groups, message):
    with embedded.pack_stream(CAPACITY, **options) as stream:
        with pytest.raises(InvalidRequestError, match=message) as caught:
            stream.send([7, 8, 9], [31, 10, 31] if options != {"align": 32} else [20, 10, 20], groups=groups)
        assert caught.value.metadata == {"field": "groups"}
        assert stream.num_held == 0
        assert [ids.tolist() for ids, _ in stream.send([1], [5]) + stream.flush()] == [[1]]


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({}, [1], "holds 1 numbers for 2 ids"),
        ({}, [1, 1], "group 1: it takes 62 tokens together"),
        ({"max_sequences_per_bin": 3}, [5, 5], "group 5: max_sequences_per_bin does not go with groups"),
    ],
)
def test_the_service_refuses_it_too_and_takes_none_of_the_message(options, groups, message):
    session = PackSession()
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=5, **options)
    session.answer(pb.PackStreamRequest(options=options))
    sequences = pb.PackStreamSequences(ids=[1, 2], lengths=[31, 31], groups=groups)
    with pytest.raises(Exception, match=message) as caught:
        session.answer(pb.PackStreamRequest(sequences=sequences))
    assert caught.value.metadata == {"field": "sequences.groups"}
    flushed = session.answer(pb.PackStreamRequest(flush=pb.PackStreamFlush()))
    assert (flushed.num_sequences_held, flushed.bins.ids) == (0, b"")


class Breaking:
    """A service whose streams break after a few messages."""

    target = "breaking"
    has_answered = True

    def __init__(self, make_session=PackSession):
        self._make_session = make_session
        self.num_streams = 0

    def stream(self, method, requests, timeout_seconds):
        self.num_streams += 1
        session = self._make_session()
        for number, request in enumerate(requests):
            if number > 2:
                raise ServerUnavailableError("it is gone")
            yield session.answer(request)


def test_after_a_break_groups_are_sent_again_whole():
    transport = Breaking()
    stream = PackStream(
        transport, pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=8), RetryPolicy(deadline_seconds=30)
    )
    lengths = np.random.default_rng(0).integers(1, 20, 240).tolist()
    groups = [number // 3 for number in range(240)]
    bins = []
    for first in range(0, 240, 12):
        bins += stream.send(range(first, first + 12), lengths[first : first + 12], groups[first : first + 12])
    bins += stream.flush()
    check_groups(bins, groups, lengths)
    assert transport.num_streams > 5


class Tearing(PackSession):
    """Heeds no groups."""

    def answer(self, request):
        request = pb.PackStreamRequest.FromString(request.SerializeToString())
        request.sequences.ClearField("groups") if request.HasField("sequences") else None
        return super().answer(request)


def test_a_torn_group_is_noticed():
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=2)
    stream = PackStream(Breaking(Tearing), options, RetryPolicy(deadline_seconds=0))
    with pytest.raises(DamagedAnswerError, match="other sequences"):
        stream.send([1, 2, 3, 4], [30, 10, 30, 10], groups=[1, 1, 2, 2])


def test_calls_do_not_share_groups(either):
    with either.pack_stream(CAPACITY, lookahead_sequences=1) as stream:
        bins = stream.send([1, 2], [30, 30], groups=[7, 7]) + stream.send([3], [40], groups=[7]) + stream.flush()
    assert Counter(tuple(ids.tolist()) for ids, _ in bins) == {(1, 2): 1, (3,): 1}


class Refusing(PackSession):
    """Refuses the second message of sequences."""

    num_messages = 0

    def answer(self, request):
        self.num_messages += request.HasField("sequences")
        if self.num_messages == 2:
            raise InvalidRequestError("no", {"field": "sequences.lengths"})
        return super().answer(request)


def test_a_refusal_after_a_part_of_a_call_was_packed_is_told(monkeypatch):
    monkeypatch.setattr(pack_stream, "SEQUENCES_PER_MESSAGE", 4)
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=1)
    transport = Breaking(Refusing)
    stream = PackStream(transport, options, RetryPolicy(deadline_seconds=0))
    with pytest.raises(InvalidRequestError, match="no"):
        stream.send(range(8), [30] * 8)
    assert stream.num_held == 0
