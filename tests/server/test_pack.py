"""PackSequences and PackStream as the backend answers them: fields, limits, and bins for every rank."""

import numpy as np
import pytest

from packhorse.server import bins_of_ranks, pack
from packhorse.server.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb

OPTIONS = pb.PackStreamRequest(options=pb.PackStreamOptions(max_seq_len=100, window_sequences=3))
FLUSH = pb.PackStreamRequest(flush=pb.PackStreamFlush())


def sequences(ids, lengths):
    return pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=ids, lengths=lengths))


def bins_of(response):
    indices = np.frombuffer(response.indices, "<u4")
    return [part.tolist() for part in np.split(indices, np.frombuffer(response.bin_ends, "<u4")[:-1])]


def refusal(method, *arguments):
    with pytest.raises(ServiceError) as caught:
        method(*arguments)
    return caught.value


@pytest.fixture
def backend(embedded):
    return embedded._transport._backend


@pytest.mark.parametrize("multiple", [0, 1, 2, 3, 7, 8])
def test_every_rank_gets_as_many_bins_and_none_is_empty(backend, multiple):
    lengths = np.random.default_rng(4).integers(1, 101, 60)
    request = pb.PackSequencesRequest(lengths=lengths, max_seq_len=100, num_bins_multiple_of=multiple)
    response = backend.pack_sequences(request)
    bins = bins_of(response)
    assert len(bins) % max(multiple, 1) == 0
    assert len(bins) - max(multiple, 1) < len(bins_of(backend.pack_sequences(pb.PackSequencesRequest(
        lengths=lengths, max_seq_len=100))))  # fmt: skip
    assert all(bins)
    assert sorted(i for b in bins for i in b) == list(range(60))
    assert all(lengths[b].sum() <= 100 for b in bins)
    assert 1 <= response.lower_bound <= len(bins)
    assert response.algorithm == "best-fit"


def test_a_lone_bin_is_split_for_every_rank(backend):
    request = pb.PackSequencesRequest(lengths=[5] * 8, max_seq_len=100, num_bins_multiple_of=4)
    response = backend.pack_sequences(request)
    assert [len(b) for b in bins_of(response)] == [2, 2, 2, 2]
    assert response.lower_bound == 1


@pytest.mark.parametrize(("lengths", "multiple", "needed"), [([5, 5, 5], 4, 4), ([100] * 5, 4, 8)])
def test_too_few_sequences_for_the_ranks(backend, lengths, multiple, needed):
    request = pb.PackSequencesRequest(lengths=lengths, max_seq_len=100, num_bins_multiple_of=multiple)
    error = refusal(backend.pack_sequences, request)
    assert error.reason == pb.ERROR_REASON_INVALID_FIELD
    assert error.metadata == {"field": "num_bins_multiple_of"}
    assert f"{needed} bins" in error.message
    assert f"only {len(lengths)} sequences" in error.message


def test_no_sequences_make_no_bins(backend):
    response = backend.pack_sequences(pb.PackSequencesRequest(max_seq_len=100, num_bins_multiple_of=4))
    assert (response.indices, response.bin_ends, response.lower_bound) == (b"", b"", 0)


def test_options_of_the_packing(backend):
    def bins(**options):
        return bins_of(backend.pack_sequences(pb.PackSequencesRequest(lengths=[10] * 12, max_seq_len=40, **options)))

    assert [len(b) for b in bins()] == [4, 4, 4]
    assert [len(b) for b in bins(max_sequences_per_bin=3)] == [3, 3, 3, 3]
    assert [len(b) for b in bins(align=16)] == [2] * 6
    assert [len(b) for b in bins(extra_tokens=3)] == [3, 3, 3, 3]
    assert [len(b) for b in bins(align=8, extra_tokens=7)] == [1] * 12
    assert bins(seed=1) == bins(seed=1) != bins(seed=2)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"lengths": [5, 0]}, "lengths"),
        ({"lengths": [5, 101]}, "lengths"),
        ({"lengths": [100], "extra_tokens": 1}, "lengths"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_seq_len": -5}, "max_seq_len"),
        ({"max_seq_len": 2**31}, "max_seq_len"),
        ({"max_sequences_per_bin": -1}, "max_sequences_per_bin"),
        ({"num_bins_multiple_of": -1}, "num_bins_multiple_of"),
        ({"num_bins_multiple_of": bins_of_ranks.MAX_MULTIPLE + 1}, "num_bins_multiple_of"),
        ({"align": -1}, "align"),
        ({"align": 101}, "align"),
        ({"extra_tokens": 100}, "extra_tokens"),
        ({"algorithm": "magic"}, "algorithm"),
    ],
)
def test_fields_out_of_range(backend, fields, field):
    request = pb.PackSequencesRequest(**({"lengths": [5, 6], "max_seq_len": 100} | fields))
    error = refusal(backend.pack_sequences, request)
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": field})
    assert field in error.message


def test_a_packer_that_this_server_lacks(backend, monkeypatch):
    def without_library(*_, **__):
        raise ModuleNotFoundError("no such thing", name="highspy")

    monkeypatch.setattr(pack, "pack_lengths", without_library)
    error = refusal(backend.pack_sequences, pb.PackSequencesRequest(lengths=[5], max_seq_len=100, algorithm="optimal"))
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_NOT_IMPLEMENTED, {"field": "algorithm"})
    assert "highspy" in error.message


def test_more_lengths_than_a_message_may_carry(backend, monkeypatch):
    monkeypatch.setattr(pack, "MAX_PACK_SEQUENCES", 10)
    error = refusal(backend.pack_sequences, pb.PackSequencesRequest(lengths=[5] * 11, max_seq_len=100))
    assert error.reason == pb.ERROR_REASON_REQUEST_TOO_LARGE
    assert error.metadata == {"field": "lengths", "limit": "10"}


def test_a_stream_answers_every_message(backend):
    messages = [
        OPTIONS,
        sequences([], []),
        sequences([9, -3, 9, 4], [60, 50, 50, 30]),
        FLUSH,
        FLUSH,
        sequences([1], [1]),
    ]
    responses = list(backend.pack_stream(messages))
    assert [r.num_sequences_held for r in responses] == [0, 0, 2, 0, 0, 1]
    bins = [r.bins for r in responses]
    assert [np.frombuffer(b.lengths, "<i4").tolist() for b in bins] == [[], [], [50, 50], [60, 30], [], []]
    assert [np.frombuffer(b.ids, "<i8").tolist() for b in bins] == [[], [], [-3, 9], [9, 4], [], []]
    assert [np.frombuffer(b.bin_ends, "<u4").tolist() for b in bins] == [[], [], [2], [2], [], []]
    assert [np.frombuffer(b.positions, "<i8").tolist() for b in bins] == [[], [], [0], [1], [], []]


@pytest.mark.parametrize(
    "messages",
    [
        [sequences([1], [1])],
        [FLUSH],
        [pb.PackStreamRequest()],
        [OPTIONS, OPTIONS],
        [OPTIONS, pb.PackStreamRequest()],
    ],
)
def test_messages_out_of_turn(backend, messages):
    error = refusal(list, backend.pack_stream(messages))
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": "payload"})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"window_sequences": 0}, "window_sequences"),
        ({"window_sequences": pack.MAX_WINDOW_SEQUENCES + 1}, "window_sequences"),
        ({"max_sequences_per_bin": -1}, "max_sequences_per_bin"),
        ({"align": -1}, "align"),
        ({"extra_tokens": 100}, "extra_tokens"),
    ],
)
def test_stream_options_out_of_range(backend, options, field):
    message = pb.PackStreamOptions(**({"max_seq_len": 100, "window_sequences": 3} | options))
    error = refusal(list, backend.pack_stream([pb.PackStreamRequest(options=message)]))
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": f"options.{field}"})


@pytest.mark.parametrize(("ids", "lengths"), [([1, 2], [5, 0]), ([1, 2], [5, 101]), ([1, 2], [5]), ([1], [5, 5])])
def test_a_refused_message_leaves_nothing_behind(backend, ids, lengths):
    session = backend.pack_session()
    session.answer(OPTIONS)
    error = refusal(session.answer, sequences(ids, lengths))
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": "sequences.lengths"})
    assert session.answer(sequences([8], [5])).num_sequences_held == 1


def test_more_sequences_than_a_message_may_carry(backend, monkeypatch):
    monkeypatch.setattr(pack, "MAX_STREAM_SEQUENCES", 10)
    error = refusal(list, backend.pack_stream([OPTIONS, sequences([1] * 11, [5] * 11)]))
    assert error.reason == pb.ERROR_REASON_REQUEST_TOO_LARGE
    assert error.metadata == {"field": "sequences.ids", "limit": "10"}


def test_more_distinct_lengths_than_a_packer_may_plan(backend, monkeypatch):
    monkeypatch.setattr(pack, "MAX_PACK_LENGTHS", 3)
    assert backend.pack_sequences(pb.PackSequencesRequest(lengths=[1, 2, 3] * 5, max_seq_len=100)).lower_bound == 1
    error = refusal(backend.pack_sequences, pb.PackSequencesRequest(lengths=[1, 2, 3, 4], max_seq_len=100))
    assert error.reason == pb.ERROR_REASON_REQUEST_TOO_LARGE
    assert error.metadata == {"field": "lengths", "limit": "3"}
    in_order = pb.PackSequencesRequest(lengths=[1, 2, 3, 4], max_seq_len=100, algorithm="next-fit")
    assert backend.pack_sequences(in_order).lower_bound == 1


def test_pieces_of_a_message_change_no_bin(backend, monkeypatch):
    from packhorse.server import pieces

    lengths = np.random.default_rng(0).integers(1, 101, 500).tolist()
    messages = [OPTIONS, sequences(range(300), lengths[:300]), sequences(range(200), lengths[300:]), FLUSH]
    whole = list(backend.pack_stream(messages))
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0)
    session = backend.pack_session()
    assert [pieces.finish(session.answer_in_pieces(message)) for message in messages] == whole
    assert len(list(session.answer_in_pieces(messages[1]))) == 300


def test_a_message_that_takes_too_long_is_refused(backend, monkeypatch):
    from packhorse.server import pieces

    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0)
    monkeypatch.setattr(pack, "MAX_STREAM_SECONDS", 0)
    session = backend.pack_session()
    session.answer(OPTIONS)
    error = refusal(session.answer, sequences(range(500), [60] * 500))
    assert error.reason == pb.ERROR_REASON_REQUEST_TOO_LARGE
    assert error.metadata["field"] == "sequences.ids"
    assert 0 < int(error.metadata["limit"]) < 500
