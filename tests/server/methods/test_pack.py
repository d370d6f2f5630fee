"""PackSequences and PackStream as the backend answers them: fields, limits, and bins for every rank."""

import numpy as np
import pytest

from packhorse.client.streams.blocks import decode_bins
from packhorse.server.base.faults import ServiceError
from packhorse.server.methods.on_demand import bins_of_ranks, pack, pack_stream
from packhorse.v1 import packing_pb2 as pb

OPTIONS = pb.PackStreamRequest(options=pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=3))
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


def test_a_bin_may_hold_longer_sequences_that_leave_out_their_last_tokens(embedded):
    [indices] = embedded.pack_sequences([5, 5], max_seq_len=8, extra_tokens=-1)  # the rooms are 4 and 4
    assert sorted(indices.tolist()) == [0, 1]


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

    monkeypatch.setattr(pack, "pack_rooms", without_library)
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
    assert [np.frombuffer(b.ids, "<i8").tolist() for b in bins] == [[], [], [-3, 9], [9, 4], [], []]
    blocks = [decode_bins(b, pb.ID_TYPE_INT64) for b in bins]
    assert [block.lengths.tolist() for block in blocks] == [[], [], [50, 50], [60, 30], [], []]
    assert [block.bin_ends.tolist() for block in blocks] == [[], [], [2], [2], [], []]


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
        ({"lookahead_sequences": 0}, "lookahead_sequences"),
        ({"lookahead_sequences": pack_stream.MAX_LOOKAHEAD_SEQUENCES + 1}, "lookahead_sequences"),
        ({"max_sequences_per_bin": -1}, "max_sequences_per_bin"),
        ({"align": -1}, "align"),
        ({"extra_tokens": 100}, "extra_tokens"),
    ],
)
def test_stream_options_out_of_range(backend, options, field):
    message = pb.PackStreamOptions(**({"max_seq_len": 100, "lookahead_sequences": 3} | options))
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
    monkeypatch.setattr(pack_stream, "MAX_STREAM_SEQUENCES", 10)
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
    from packhorse.server.base import time_slices

    lengths = np.random.default_rng(0).integers(1, 101, 500).tolist()
    messages = [OPTIONS, sequences(range(300), lengths[:300]), sequences(range(200), lengths[300:]), FLUSH]
    whole = list(backend.pack_stream(messages))
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0)
    session = backend.pack_session()
    assert [time_slices.finish(session.answer_in_slices(message)) for message in messages] == whole
    assert len(list(session.answer_in_slices(messages[1]))) == 600  # one checked, one packed


def test_a_message_that_takes_too_long_is_refused(backend, monkeypatch):
    from packhorse.server.base import time_slices

    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0)
    monkeypatch.setattr(pack_stream, "MAX_STREAM_SECONDS", 0)
    session = backend.pack_session()
    session.answer(OPTIONS)
    error = refusal(session.answer, sequences(range(500), [60] * 500))
    assert error.reason == pb.ERROR_REASON_REQUEST_TOO_LARGE
    assert error.metadata["field"] == "sequences.ids"
    assert 0 < int(error.metadata["limit"]) < 500


def some_lengths(count=400, seed=6):
    return np.clip(np.random.default_rng(seed).lognormal(4, 1.2, count).astype(int), 1, 1000)


def costs_of(bins, lengths, cost_linear):
    return np.array([(cost_linear * lengths[b] + lengths[b] ** 2).sum() for b in bins])


def waiting(costs):
    """Time that ranks take beyond their own work; costs are [steps, D]."""
    return costs.max(axis=1).sum() / costs.mean(axis=1).sum() - 1


def test_every_ranks_bins_cost_the_same(backend):
    lengths = some_lengths()

    def steps(**options):
        request = pb.PackSequencesRequest(
            lengths=lengths, max_seq_len=1000, num_bins_multiple_of=4, cost_linear=100, algorithm="next-fit", **options
        )
        bins = bins_of(backend.pack_sequences(request))
        assert sorted(i for b in bins for i in b) == list(range(400))
        assert max(lengths[b].sum() for b in bins) <= 1000
        return costs_of(bins, lengths, 100).reshape(-1, 4)

    unbalanced = steps()
    in_steps = steps(balance=pb.BALANCE_MICRO_STEP)
    assert in_steps.shape == unbalanced.shape  # as many bins
    assert waiting(in_steps) < waiting(unbalanced) / 5  # a sequence of 1,000 costs four times a mean bin
    in_sum = steps(balance=pb.BALANCE_OPTIMIZER_STEP)
    assert in_sum.shape == unbalanced.shape
    assert waiting(in_sum.sum(axis=0)[None]) < min(0.002, waiting(unbalanced.sum(axis=0)[None]))
    assert steps(balance=pb.BALANCE_NONE).tolist() == unbalanced.tolist()


@pytest.mark.parametrize("balance", [pb.BALANCE_MICRO_STEP, pb.BALANCE_OPTIMIZER_STEP])
def test_groups_budgets_and_limits_hold_in_packs_of_equal_cost(backend, balance):
    random = np.random.default_rng(3)
    lengths, tiles = random.integers(1, 120, size=300), random.integers(0, 4, size=300)
    groups = np.sort(random.integers(0, 90, size=300))
    common = {"max_seq_len": 1000, "num_bins_multiple_of": 8, "cost_linear": 100, "balance": balance}
    budgets = [pb.Budget(name="tiles", cap=20, amounts=tiles)]
    request = pb.PackSequencesRequest(lengths=lengths, groups=groups, budgets=budgets, **common)
    bins = bins_of(backend.pack_sequences(request))
    assert sorted(i for b in bins for i in b) == list(range(300))
    assert max(lengths[b].sum() for b in bins) <= 1000
    assert max(tiles[b].sum() for b in bins) <= 20
    assert sum(len(set(groups[b])) for b in bins) == len(set(groups))
    assert waiting(costs_of(bins, lengths, 100).reshape(-1, 8)) < 0.02
    request = pb.PackSequencesRequest(lengths=lengths, max_sequences_per_bin=5, **common)
    bins = bins_of(backend.pack_sequences(request))
    assert (len(bins), max(map(len, bins))) == (64, 5)
    assert waiting(costs_of(bins, lengths, 100).reshape(-1, 8)) < 0.01


def test_one_round_more_is_added_where_full_bins_can_exchange_nothing(backend):
    lengths = [17, 6, 8, 32, 16, 15, 3, 3, 4, 33, 63, 15, 4, 4, 2, 20, 37, 9, 9, 26, 74]  # 400: four full bins
    options = {"lengths": lengths, "max_seq_len": 100, "num_bins_multiple_of": 2}
    plain = bins_of(backend.pack_sequences(pb.PackSequencesRequest(**options)))
    bins = bins_of(backend.pack_sequences(pb.PackSequencesRequest(balance=pb.BALANCE_MICRO_STEP, **options)))
    assert (len(plain), len(bins)) == (4, 6)
    assert sorted(i for b in bins for i in b) == list(range(21))
    slowest = [costs_of(some, np.array(lengths), 0).reshape(-1, 2).max(axis=1).sum() for some in (bins, plain)]
    assert slowest[0] < slowest[1]
    even = {"lengths": [50, 50, 50, 50], "max_seq_len": 100, "num_bins_multiple_of": 2}
    bins = bins_of(backend.pack_sequences(pb.PackSequencesRequest(balance=pb.BALANCE_MICRO_STEP, **even)))
    assert len(bins) == 2


@pytest.mark.parametrize("balance", [pb.BALANCE_MICRO_STEP, pb.BALANCE_OPTIMIZER_STEP])
def test_costs_that_are_given_are_what_ranks_share(backend, balance):
    random = np.random.default_rng(4)
    lengths, costs = some_lengths().clip(max=200), random.integers(1, 1 << 40, 400)
    request = pb.PackSequencesRequest(
        lengths=lengths, costs=costs, max_seq_len=1000, num_bins_multiple_of=4, balance=balance
    )
    bins = bins_of(backend.pack_sequences(request))
    assert sorted(i for b in bins for i in b) == list(range(400))
    assert max(lengths[b].sum() for b in bins) <= 1000
    in_steps = np.array([costs[b].sum() for b in bins]).reshape(-1, 4)
    by_length = costs_of(bins, lengths, 100).reshape(-1, 4)
    if balance == pb.BALANCE_OPTIMIZER_STEP:
        in_steps, by_length = in_steps.sum(axis=0)[None], by_length.sum(axis=0)[None]
    assert waiting(in_steps) < min(0.005, waiting(by_length))


@pytest.mark.parametrize("costs", [[1], [1, 2, 1 << 62], [1 << 61, 1 << 61, 0]])
def test_costs_that_do_not_fit_are_refused(backend, costs):
    request = pb.PackSequencesRequest(lengths=[3, 4, 5], max_seq_len=10, costs=costs)
    with pytest.raises(ServiceError, match="costs holds"):
        backend.pack_sequences(request)


@pytest.mark.parametrize("balance", [pb.BALANCE_MICRO_STEP, pb.BALANCE_OPTIMIZER_STEP])
@pytest.mark.parametrize("seed", range(10))
def test_a_balance_never_makes_ranks_wait_more(backend, balance, seed):
    """Where single sequences cost more than a mean bin, bins of several sizes may share rounds better."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.pareto(0.8, 120) * 20, 1, 1000).astype(int)
    options = {"lengths": lengths, "max_seq_len": 1000, "num_bins_multiple_of": 8}
    plain = costs_of(bins_of(backend.pack_sequences(pb.PackSequencesRequest(**options))), lengths, 0)
    balanced = costs_of(
        bins_of(backend.pack_sequences(pb.PackSequencesRequest(balance=balance, **options))), lengths, 0
    )
    if balance == pb.BALANCE_MICRO_STEP:
        assert waiting(balanced.reshape(-1, 8)) <= waiting(-np.sort(-plain).reshape(-1, 8)) + 1e-9
    else:
        assert (
            waiting(balanced.reshape(-1, 8).sum(axis=0)[None]) <= waiting(plain.reshape(-1, 8).sum(axis=0)[None]) + 1e-9
        )


@pytest.mark.parametrize("lengths", [[5, 5, 5], [100] * 5])
@pytest.mark.parametrize("balance", [pb.BALANCE_UNSPECIFIED, pb.BALANCE_MICRO_STEP, pb.BALANCE_OPTIMIZER_STEP])
def test_empty_bins_on_request(backend, lengths, balance):
    request = pb.PackSequencesRequest(
        lengths=lengths, max_seq_len=100, num_bins_multiple_of=4, allow_empty=True, balance=balance
    )
    bins = bins_of(backend.pack_sequences(request))
    assert len(bins) == -(-len(lengths) // 4) * 4
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert sorted(map(len, bins)) == [0] * (len(bins) - len(lengths)) + [1] * len(lengths)


@pytest.mark.parametrize("multiple", [1, 7])
@pytest.mark.parametrize("balance", [pb.BALANCE_NONE, pb.BALANCE_MICRO_STEP])
def test_kinds_share_no_bin(backend, multiple, balance):
    lengths = some_lengths(100)
    kinds = np.random.default_rng(2).choice([4, 9, 2**32 - 1], 100)
    request = pb.PackSequencesRequest(
        lengths=lengths, max_seq_len=1000, separate_by=kinds, num_bins_multiple_of=multiple, balance=balance
    )
    response = backend.pack_sequences(request)
    bins = bins_of(response)
    assert len(bins) % multiple == 0
    assert all(len(set(kinds[b])) == 1 for b in bins)
    assert sorted(i for b in bins for i in b) == list(range(100))
    apart = [
        backend.pack_sequences(pb.PackSequencesRequest(lengths=lengths[kinds == kind], max_seq_len=1000))
        for kind in sorted(set(kinds))
    ]
    assert response.lower_bound == sum(part.lower_bound for part in apart)
    assert response.algorithm == "best-fit"
    if multiple == 1:
        assert len(bins) == sum(len(bins_of(part)) for part in apart)


def test_more_kinds_than_a_message_may_have(backend, monkeypatch):
    monkeypatch.setattr(pack, "MAX_KINDS", 2)
    request = pb.PackSequencesRequest(lengths=[1, 2, 3], max_seq_len=10, separate_by=[1, 2, 3])
    error = refusal(backend.pack_sequences, request)
    assert (error.reason, error.metadata) == (
        pb.ERROR_REASON_REQUEST_TOO_LARGE,
        {"field": "separate_by", "limit": "2"},
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"balance": 77}, "balance"),
        ({"cost_linear": -1}, "cost_linear"),
        ({"balance": pb.BALANCE_MICRO_STEP, "cost_linear": 2**62}, "cost_linear"),
        ({"separate_by": [1]}, "separate_by"),
    ],
)
def test_fields_of_a_balance_out_of_range(backend, fields, field):
    request = pb.PackSequencesRequest(lengths=[5, 6], max_seq_len=100, **fields)
    error = refusal(backend.pack_sequences, request)
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": field})
    assert field in error.message


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_bins_multiple_of": -1}, "num_bins_multiple_of"),
        ({"num_bins_multiple_of": 2, "accumulation": bins_of_ranks.MAX_MULTIPLE // 2 + 1}, "accumulation"),
        ({"balance": 77}, "balance"),
        ({"cost_linear": -1}, "cost_linear"),
        ({"balance": pb.BALANCE_OPTIMIZER_STEP, "cost_linear": 2**62}, "cost_linear"),
    ],
)
def test_stream_options_of_a_balance_out_of_range(backend, options, field):
    message = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=3, **options)
    error = refusal(list, backend.pack_stream([pb.PackStreamRequest(options=message)]))
    assert (error.reason, error.metadata) == (pb.ERROR_REASON_INVALID_FIELD, {"field": f"options.{field}"})


def test_what_a_group_holds_counts_as_held(backend):
    options = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=2, num_bins_multiple_of=3)
    session = backend.pack_session()
    session.answer(pb.PackStreamRequest(options=options))
    held = [session.answer(sequences([number], [100])).num_sequences_held for number in range(5)]
    assert held == [1, 2, 3, 4, 2]  # the third bin completes the group
    error = refusal(session.answer, FLUSH)
    assert (error.reason, error.metadata) == (
        pb.ERROR_REASON_INVALID_FIELD,
        {"field": "options.num_bins_multiple_of"},
    )
    assert session.answer(sequences([5], [100])).num_sequences_held == 3
    last = session.answer(FLUSH)
    assert last.num_sequences_held == 0
    assert sorted(np.frombuffer(last.bins.ids, "<i8").tolist()) == [3, 4, 5]
    assert decode_bins(last.bins, pb.ID_TYPE_INT64).bin_ends.tolist() == [1, 2, 3]
