"""PackStream with versions of the policy: what is too old comes back, nothing is lost, and bins are fresh."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import PackStream, RetryPolicy
from packhorse.client.errors import (
    DamagedAnswerError,
    InvalidRequestError,
    ServerUnavailableError,
    VersionMismatchError,
)
from packhorse.client.options import Staleness
from packhorse.server.methods.on_demand.pack_stream import PackSession
from packhorse.v1 import packing_pb2 as pb

CAPACITY = 60


@pytest.fixture(params=["client", "embedded"])
def either(request):
    """A client of a server, then one without."""
    return request.getfixturevalue(request.param)


class Breaking:
    """A service whose streams break after a few messages."""

    target = "breaking"
    has_answered = True

    def __init__(self, most=10**9, make_session=PackSession):
        self.most, self.make_session = most, make_session
        self.num_streams = 0

    def stream(self, method, requests, timeout_seconds):
        self.num_streams += 1
        session = self.make_session()
        for number, request in enumerate(requests):
            if number > self.most:
                raise ServerUnavailableError("it is gone")
            yield session.answer(request)


@st.composite
def cases(draw):
    """Calls as (policy version or None, rows of (length, group, age)); and options of a stream."""
    row = st.tuples(st.integers(1, 20), st.integers(0, 3), st.integers(0, 4))
    calls = draw(st.lists(st.tuples(st.booleans(), st.lists(row, max_size=6)), min_size=1, max_size=12))
    options = {
        "max_staleness": draw(st.none() | st.integers(0, 3)),
        "evict_groups": draw(st.booleans()),
        "separate_versions": draw(st.booleans()),
        "lookahead_sequences": draw(st.integers(1, 9)),
        "num_bins_multiple_of": draw(st.sampled_from([1, 2, 3])),
        "balance": draw(st.sampled_from([1, 2])),
        "allow_empty": True,
    }
    return calls, options, draw(st.booleans()), draw(st.sampled_from([2, 10**9]))


@given(cases())
@settings(max_examples=100)
def test_each_sequence_is_in_a_fresh_bin_or_comes_back(case):
    calls, options, in_groups, most = case
    if options["max_staleness"] is None and not options["separate_versions"]:
        options["max_staleness"] = 2
    stream = PackStream(
        Breaking(most), pb.PackStreamOptions(max_seq_len=CAPACITY, **options), RetryPolicy(deadline_seconds=30)
    )
    versions, groups, lengths = [], [], []
    packed, evicted, last_version = [], [], 0

    def take(answer, version):
        staleness = options["max_staleness"]
        for ids, held in answer:
            assert held.tolist() == [lengths[i] for i in ids]
            assert sum(held) <= CAPACITY
            if staleness is not None:
                assert all(versions[i] >= version - staleness for i in ids)
            if options["separate_versions"]:
                assert len({versions[i] for i in ids}) <= 1
            packed.extend(ids.tolist())
        for i in answer.evicted.tolist():
            group = [j for j in range(len(lengths)) if groups[j] == groups[i] and (i == j or in_groups)]
            oldest = min(versions[j] for j in group) if options["evict_groups"] else versions[i]
            assert oldest < version - staleness
            evicted.append(i)

    for number, (raises, rows) in enumerate(calls):
        last_version += int(raises)
        ids = list(range(len(lengths), len(lengths) + len(rows)))
        of_groups = {}
        for length, group, age in rows:
            # Several versions of a group go only where versions share bins.
            own = max(last_version - age, 0)
            shared = of_groups.setdefault(group, own)
            versions.append(shared if options["separate_versions"] and in_groups else own)
            lengths.append(min(length, 10) if in_groups else length)
            groups.append((number, group))
        answer = stream.send(
            ids,
            lengths[len(lengths) - len(rows) :],
            [group for _, group, _ in rows] if in_groups else None,
            versions=versions[len(versions) - len(rows) :],
            policy_version=last_version,
        )
        take(answer, last_version)
        assert stream.num_held == len(lengths) - len(packed) - len(evicted)
        assert stream.num_evicted == len(evicted)
    last_version += 1
    take(stream.flush(policy_version=last_version), last_version)
    assert sorted(packed + evicted) == list(range(len(lengths)))
    assert stream.num_held == 0


def test_what_is_too_old_comes_back_by_itself_or_with_its_group(either):
    for evict, expected in (("sequence", [1]), ("group", [0, 1])):
        with either.pack_stream(CAPACITY, max_staleness=Staleness(1, evict=evict)) as stream:
            answer = stream.send([0, 1, 2], [10, 10, 10], groups=[0, 0, 1], versions=[5, 4, 6])
            assert (answer.evicted.tolist(), stream.num_evicted) == (expected, len(expected))
            answer += stream.flush()
            assert sorted(i for ids, _ in answer for i in ids.tolist()) == sorted({0, 1, 2} - set(expected))


def test_what_a_newer_policy_would_make_too_old_leaves_in_time(either):
    """Waiting for fuller bins costs no sequence: those of the oldest version allowed leave, with newer ones."""
    with either.pack_stream(CAPACITY, max_staleness=1, lookahead_sequences=9) as stream:
        assert stream.send(range(4), [10] * 4, versions=[3] * 4) == []
        answer = stream.send([4], [20], versions=[4])
        assert [ids.tolist() for ids, _ in answer] == [[4, 0, 1, 2, 3]]
        assert (answer.evicted.tolist(), stream.num_held) == ([], 0)
        assert stream.send([5], [10], versions=[4]) == []
        answer = stream.flush(policy_version=6)  # a version was left out
        assert (answer, answer.evicted.tolist(), stream.num_evicted) == ([], [5], 1)
        assert stream.flush(policy_version=9) == []


def test_a_round_is_filled_up_so_that_none_of_it_grows_too_old(either):
    with either.pack_stream(CAPACITY, max_staleness=1, num_bins_multiple_of=3, lookahead_sequences=9) as stream:
        assert stream.send(range(6), [50] * 6, versions=[4, 3, 4, 4, 4, 4], policy_version=4)[0][0].tolist() == [1]
        assert stream.num_held == 3
        answer = stream.send([], [], versions=[], policy_version=5)
        assert sorted(i for ids, _ in answer for i in ids.tolist()) == [3, 4, 5]
        assert stream.num_evicted == 0


def test_a_bin_that_waits_for_its_round_loses_what_is_too_old(either):
    with either.pack_stream(CAPACITY, max_staleness=0, num_bins_multiple_of=4, lookahead_sequences=1) as stream:
        assert stream.send([0, 1, 2], [60, 40, 60], versions=[1, 1, 1]) == []
        answer = stream.send([3], [20], versions=[2])
        assert sorted(answer.evicted.tolist()) == [0, 1, 2]
        assert (answer, stream.num_held) == ([], 1)


def test_versions_that_are_separate_leave_oldest_first(either):
    with either.pack_stream(CAPACITY, max_staleness=Staleness(separate_versions=True), lookahead_sequences=4) as stream:
        bins = stream.send([0, 1, 2, 3, 4], [20, 30, 20, 30, 20], versions=[7, 8, 7, 8, 7])
        assert [ids.tolist() for ids, _ in bins] == [[0, 2, 4]]
        bins = stream.flush()
        assert [ids.tolist() for ids, _ in bins] == [[1, 3]]


@pytest.mark.parametrize(
    ("call", "field", "match"),
    [
        ({"ids": [1, 2], "lengths": [3, 4]}, "versions", "holds 0 numbers for 2 ids"),
        ({"ids": [1, 2], "lengths": [3, 4], "versions": [1]}, "versions", "holds 1 numbers for 2 ids"),
        ({"ids": [1, 2], "lengths": [3, 4], "versions": [1, -1]}, "versions", "says -1 of sequence 2"),
        (
            {"ids": [1, 2], "lengths": [3, 4], "versions": [5, 6], "policy_version": 5},
            "versions",
            "says 6 of sequence 2",
        ),
        ({"ids": [1, 1], "lengths": [3, 4], "versions": [5, 5]}, "ids", "holds 1, which is sent already"),
        ({"ids": [9], "lengths": [3], "versions": [5]}, "ids", "holds 9, which is sent already"),
        ({"ids": [1], "lengths": [3], "versions": [2], "policy_version": 3}, "policy_version", "3 goes back"),
    ],
)
def test_versions_that_do_not_fit_are_refused_and_nothing_is_kept(either, call, field, match):
    with either.pack_stream(CAPACITY, max_staleness=1) as stream:
        stream.send([9], [10], versions=[4])
        with pytest.raises(InvalidRequestError, match=match) as caught:
            stream.send(**call)
        assert caught.value.metadata == {"field": field}
        assert stream.num_held == 1
        with pytest.raises(InvalidRequestError, match="goes back"):
            stream.flush(policy_version=3)
        assert [ids.tolist() for ids, _ in stream.flush(policy_version=4)] == [[9]]


def test_a_stream_without_versions_refuses_them(either):
    with either.pack_stream(CAPACITY) as stream, pytest.raises(InvalidRequestError, match="give pack_stream max_st"):
        stream.send([1], [5], versions=[1])
    with pytest.raises(InvalidRequestError, match="at least 0"):
        either.pack_stream(CAPACITY, max_staleness=-1)
    with pytest.raises(InvalidRequestError, match="'sequence' or 'group'"):
        Staleness(1, evict="pack")
    with (
        either.pack_stream(CAPACITY, max_staleness=Staleness(separate_versions=True)) as stream,
        pytest.raises(InvalidRequestError, match="several of group 3"),
    ):
        stream.send([1, 2], [5, 5], [3, 3], versions=[1, 2])


@pytest.mark.parametrize(
    ("versions", "policy_version", "match"),
    [
        ([1], None, "holds 1 numbers for 2 ids"),
        ([1, -1], None, "must be at least 0"),
        ([1, 3], 2, "sequence 8 is of version 3, newer than policy_version 2"),
    ],
)
def test_the_service_refuses_it_too(versions, policy_version, match):
    session = PackSession()
    session.answer(
        pb.PackStreamRequest(options=pb.PackStreamOptions(max_seq_len=9, lookahead_sequences=2, max_staleness=1))
    )
    sequences = pb.PackStreamSequences(ids=[7, 8], lengths=[3, 3], versions=versions, policy_version=policy_version)
    with pytest.raises(Exception, match=match):
        session.answer(pb.PackStreamRequest(sequences=sequences))
    session.answer(pb.PackStreamRequest(flush=pb.PackStreamFlush(policy_version=4)))
    with pytest.raises(Exception, match=r"flush.policy_version 3 goes back: the stream has seen 4"):
        session.answer(pb.PackStreamRequest(flush=pb.PackStreamFlush(policy_version=3)))


class Older(PackSession):
    """Knows no versions."""

    def answer(self, request):
        request = pb.PackStreamRequest.FromString(request.SerializeToString())
        for name in ("max_staleness", "separate_versions"):
            request.options.ClearField(name) if request.HasField("options") else None
        request.sequences.ClearField("versions") if request.HasField("sequences") else None
        return super().answer(request)


@pytest.mark.parametrize(
    ("option", "value", "versions"), [("max_staleness", 1, [1, 4]), ("separate_versions", True, [1, 2])]
)
def test_an_older_server_is_noticed(option, value, versions):
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=4, **{option: value})
    stream = PackStream(Breaking(make_session=Older), options, RetryPolicy(deadline_seconds=0))
    with pytest.raises(VersionMismatchError, match=option):
        _ = stream.send([1, 2], [30, 30], versions=versions) + stream.flush()


class Greedy(PackSession):
    """Evicts what is fresh."""

    def answer(self, request):
        response = super().answer(request)
        if request.HasField("sequences"):
            response.evicted.append(request.sequences.ids[0])
        return response


def test_an_eviction_of_something_fresh_is_noticed():
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=4, max_staleness=1)
    stream = PackStream(Breaking(make_session=Greedy), options, RetryPolicy(deadline_seconds=0))
    with pytest.raises(DamagedAnswerError, match="other sequences"):
        stream.send([1, 2], [30, 30], versions=[1, 1])


def test_amounts_of_what_is_left_of_a_group_count(either):
    with either.pack_stream(CAPACITY, max_staleness=1, resources={"tiles": 10}, lookahead_sequences=9) as stream:
        answer = stream.send([0, 1, 2], [10, 10, 10], [0, 0, 1], versions=[1, 5, 5], amounts={"tiles": [6, 4, 6]})
        assert answer.evicted.tolist() == [0]
        assert len(stream.flush()) == 1  # 4 + 6 tiles


def test_answers_add_up():
    session = Breaking()
    options = pb.PackStreamOptions(max_seq_len=CAPACITY, lookahead_sequences=4, max_staleness=0)
    stream = PackStream(session, options, RetryPolicy(deadline_seconds=0))
    both = stream.send([1, 2], [30, 30], versions=[1, 2]) + stream.flush(policy_version=3)
    assert ([ids.tolist() for ids, _ in both], both.evicted.tolist()) == ([[2]], [1])
    assert isinstance(both.evicted, np.ndarray)
