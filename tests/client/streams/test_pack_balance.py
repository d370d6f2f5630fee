"""Packing on demand for D ranks, as a client sees it: bin k is rank k mod D's, through breaks of the connection too."""

import threading
from collections import Counter

import numpy as np
import pytest
from tests.client.streams.interrupted import Interrupted

from packhorse.client import Balance, PackStream, RetryPolicy, connect
from packhorse.client.errors import DamagedAnswerError, InvalidRequestError
from packhorse.client.options import PackOptions
from packhorse.v1 import packing_pb2 as pb

COST_LINEAR = 300


@pytest.fixture(params=["client", "embedded"])
def either(request):
    """A client of a server, then one without."""
    return request.getfixturevalue(request.param)


def some(count, seed=1):
    return np.clip(np.random.default_rng(seed).lognormal(4, 1, count).astype(int), 1, 512)


def costs(bins, world_size):
    """Cost of each rank's bin at each step, of bins given by their lengths: [steps, D]."""
    return np.array([(COST_LINEAR * n + n**2).sum() for n in bins]).reshape(-1, world_size)


def are_neighbours(costs):
    """Whether each step has the bins next to each other by cost, of costs [steps, D]: no dealing waits less."""
    in_order = np.sort(costs, axis=None).reshape(costs.shape)
    return sorted(map(sorted, costs.tolist())) == in_order.tolist()


def waiting(costs):
    """Time that ranks take beyond their own work, of costs [steps, D]."""
    return costs.max(axis=1).sum() / costs.mean(axis=1).sum() - 1


@pytest.mark.parametrize("balance", [*Balance, "Optimizer_Step"])
def test_lengths_at_once(either, balance):
    lengths = some(600)
    bins = either.pack_sequences(
        lengths,
        512,
        num_bins_multiple_of=8,
        packing=PackOptions(balance=balance, cost_linear=COST_LINEAR, algorithm="next-fit"),
    )
    assert sorted(np.concatenate(bins).tolist()) == list(range(600))
    of_ranks = costs([lengths[b] for b in bins], 8)
    if balance == Balance.MICRO_STEP:
        assert are_neighbours(of_ranks)
    elif balance != Balance.NONE:
        assert waiting(of_ranks.sum(axis=0)[None]) < 0.001
    else:
        assert waiting(of_ranks) > 0.2


def test_empty_bins_on_request_only(either):
    with pytest.raises(InvalidRequestError, match="set allow_empty"):
        either.pack_sequences([5, 6], 512, num_bins_multiple_of=4)
    bins = either.pack_sequences([5, 6], 512, num_bins_multiple_of=4, packing=PackOptions(allow_empty=True))
    assert sorted(b.tolist() for b in bins) == [[], [], [0], [1]]


def test_kinds_share_no_bin(either):
    assert len(either.pack_sequences([5] * 6, 512)) == 1
    bins = either.pack_sequences([5] * 6, 512, separate_by=[7, 1, 7, 1, 7, 7])
    assert sorted(sorted(b.tolist()) for b in bins) == [[0, 2, 4, 5], [1, 3]]


def altered(client, **fields):
    """Lets the service answer another request than was sent."""
    answer = client._transport.answer

    def answer_altered(method, request, seconds):
        other = pb.PackSequencesRequest()
        other.CopyFrom(request)
        for name, value in fields.items():
            other.ClearField(name)
            if value is not None:
                setattr(other, name, value)
        return answer(method, other, seconds)

    client._transport.answer = answer_altered


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ({"separate_by": [1, 2, 1]}, {"separate_by": None}),
        ({"num_bins_multiple_of": 2}, {"num_bins_multiple_of": 1}),
        ({"num_bins_multiple_of": 1}, {"num_bins_multiple_of": 8, "allow_empty": True}),
    ],
)
def test_an_answer_that_leaves_out_a_field_is_refused(corpus, sent, fields):
    with connect(f"embedded:{corpus.root}", retry=RetryPolicy(deadline_seconds=0)) as client:
        altered(client, **fields)
        with pytest.raises(DamagedAnswerError, match="no packing"):
            client.pack_sequences([5, 6, 7], 512, **sent)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"packing": {"balance": "sideways"}}, "balance"),
        ({"packing": {"cost_linear": 2**63}}, "cost_linear"),
        ({"packing": {"cost_linear": -1}}, "cost_linear"),
        ({"separate_by": [1]}, "separate_by"),
        ({"separate_by": [-1, 0]}, "separate_by"),
    ],
)
def test_bad_options_at_once(either, options, field):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        either.pack_sequences([5, 6], 512, **(options | {"packing": PackOptions(**options.get("packing", {}))}))
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"balance": "sideways"}, "balance"),
        ({"accumulation": -1}, "accumulation"),
        ({"cost_linear": -1}, "cost_linear"),
    ],
)
def test_bad_options_of_a_stream(either, options, field):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        either.pack_stream(512, **options).send([1], [5])
    assert caught.value.metadata["field"] == f"options.{field}"


@pytest.mark.parametrize("balance", Balance)
def test_a_stream_in_groups(either, balance):
    lengths, bins = some(3000), []
    with either.pack_stream(
        512, lookahead_sequences=100, num_bins_multiple_of=4, accumulation=5, balance=balance, cost_linear=COST_LINEAR
    ) as stream:
        group = 4 if balance is Balance.NONE else 20
        for start in range(0, 3000, 100):
            ready = stream.send(range(start, start + 100), lengths[start : start + 100])
            assert len(ready) % group == 0
            bins += ready
            assert stream.num_held == start + 100 - sum(len(ids) for ids, _ in bins)
        num_grouped = len(bins)
        bins += stream.flush()
        assert stream.num_held == 0
    assert len(bins) % 4 == 0
    assert all(len(ids) for ids, _ in bins)
    assert sorted(i for ids, _ in bins for i in ids.tolist()) == list(range(3000))
    assert all(np.array_equal(lengths[ids], n) for ids, n in bins)
    of_ranks = costs([n for _, n in bins[:num_grouped]], 4)
    in_sum = of_ranks.reshape(-1, group // 4, 4).sum(axis=1)
    if balance is Balance.MICRO_STEP:
        assert all(are_neighbours(steps) for steps in of_ranks.reshape(-1, 5, 4))
    elif balance is Balance.OPTIMIZER_STEP:
        assert waiting(in_sum) < 0.03
    else:
        assert waiting(of_ranks) > 0.1


def test_a_flush_with_too_few_sequences_loses_none(either):
    with either.pack_stream(100, num_bins_multiple_of=4) as stream:
        assert stream.send([1, 2, 3], [100, 20, 30]) == []
        with pytest.raises(InvalidRequestError, match=r"only 3 sequences.*set allow_empty"):
            stream.flush()
        assert stream.num_held == 3
        assert stream.send([4], [40]) == []
        assert sorted(ids.tolist() for ids, _ in stream.flush()) == [[1], [2], [3], [4]]


def test_a_flush_may_add_empty_bins(either):
    with either.pack_stream(100, num_bins_multiple_of=4, allow_empty=True) as stream:
        stream.send([1, 2], [100, 20])
        assert [ids.tolist() for ids, _ in stream.flush()] == [[1], [2], [], []]
        assert stream.flush() == []


@pytest.mark.parametrize("end", ["kill", pytest.param("terminate", marks=pytest.mark.long)])
def test_a_server_that_dies_loses_and_repeats_nothing(corpus, make_server, end):
    lengths, bins = some(2000, seed=9), []
    options = {"num_bins_multiple_of": 3, "accumulation": 4, "balance": Balance.MICRO_STEP}
    with (
        make_server(corpus.root) as server,
        connect(server.target, retry=RetryPolicy(deadline_seconds=60)) as client,
        client.pack_stream(512, lookahead_sequences=100, **options) as stream,
    ):
        for number, start in enumerate(range(0, 2000, 100)):
            if number == 7:
                assert stream.num_held > 100  # a group has begun
                getattr(server, end)()
                server.wait()
                again = threading.Thread(target=server.start)  # while the client tries
                again.start()
            ready = stream.send(range(start, start + 100), lengths[start : start + 100])
            assert len(ready) % 12 == 0
            bins += ready
            if number == 7:
                again.join()
        bins += stream.flush()
    assert len(bins) % 3 == 0
    held = Counter((i, n) for ids, lengths in bins for i, n in zip(ids.tolist(), lengths.tolist(), strict=True))
    assert held == Counter(enumerate(lengths.tolist()))


@pytest.mark.parametrize("at", range(1, 14))
def test_an_interrupt_within_a_group(embedded, at):
    options = pb.PackStreamOptions(
        max_seq_len=100,
        lookahead_sequences=2,
        num_bins_multiple_of=2,
        accumulation=2,
        balance=pb.BALANCE_OPTIMIZER_STEP,
    )
    stream = PackStream(Interrupted(embedded._transport._backend, at), options, RetryPolicy())
    bins = []
    for number in range(12):
        held = stream.num_held
        try:
            bins += stream.send([number], [60 + number])
        except KeyboardInterrupt:
            if stream.num_held == held:  # it came before the sequence was taken
                bins += stream.send([number], [60 + number])
        assert len(bins) % 4 == 0
    try:
        bins += stream.flush()
    except KeyboardInterrupt:
        bins += stream.flush()
    assert sorted(i for ids, _ in bins for i in ids.tolist()) == list(range(12))
    assert len(bins) == 12
