"""Every field out of range is refused by name, by a server and embedded alike."""

from types import SimpleNamespace

import grpc
import pytest

from packhorse.client.errors import InvalidRequestError, RequestTooLargeError
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.client.transport.methods import GET_BINS, LOCATE_SEQUENCES, STREAM_BINS
from packhorse.client.transport.requests import topology_message
from packhorse.epoch import MAX_BINS_PER_OPTIMIZER_STEP
from packhorse.server.methods import requests
from packhorse.server.methods.asked_dataset import MAX_SKIPS
from packhorse.server.methods.requests import MAX_SEQUENCES_PER_STEP
from packhorse.topology import BatchPhase, BatchSchedule, Skips, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

BIG = 2**31 - 1


@pytest.fixture(params=["client", "embedded"])
def either(request):
    return request.getfixturevalue(request.param)


TIMEOUT_SECONDS = 20.0

WHOLE = {
    "world_size": 1,
    "workers_per_rank": 1,
    "batch_size": 1,
    "remainder": "REMAINDER_POLICY_SPREAD",
    "mode": "STREAM_MODE_PARTITION",
    "balance": "BALANCE_NONE",
    "accumulation": 1,
}
"""Fields of a topology that nothing is missing in."""


STAGES = [{"bins": 0, "global_batch_size": 4}]
"""A schedule of one stage."""


def raw_stream(client, topology=None, **fields):
    """Sends a request past the client's own checks, to a server or embedded; the first message of the answer."""
    shape = pb.Topology(**(WHOLE | (topology or {})))
    request = pb.StreamBinsRequest(dataset="rows", topology=shape, wire_version=WIRE_VERSION, **fields)
    return next(client._transport.stream(STREAM_BINS, request, lambda: TIMEOUT_SECONDS))


STREAM_FIELDS = [
    ("rank", {"rank": -1}),
    ("rank", {"rank": 1}),
    ("rank", {"rank": 3, "topology": Topology(world_size=3, mode="independent")}),
    ("rank", {"rank": 2**31}),
    ("rank", {"rank": 0.5}),
    ("worker", {"worker": -1}),
    ("worker", {"worker": 2, "topology": Topology(workers_per_rank=2)}),
    ("worker", {"worker": -(2**40)}),
    ("topology.world_size", {"topology": Topology(world_size=2**31)}),
    ("topology.workers_per_rank", {"topology": Topology(workers_per_rank=2**31)}),
    ("topology.batch_size", {"topology": Topology(batch_size=2**31)}),
    ("topology.start_position", {"topology": Topology(start_position=10**9)}),
    ("topology.start_position", {"topology": Topology(start_position=2**63)}),
    ("topology.accumulation", {"topology": Topology(accumulation=2**31)}),
    ("topology.cost_linear", {"topology": Topology(cost_linear=2**63)}),
    ("topology.cost_linear", {"topology": Topology(balance="micro-step", cost_linear=2**62)}),
    ("skip.end", {"skip": Skips.of([(0, 2**63)])}),
    ("first_step", {"first_step": -1}),
    ("first_step", {"first_step": 2**63}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": "7"}),
    ("epoch", {"epoch": -1}),
    ("epoch", {"epoch": 2**64}),
    ("expected_digest", {"expected_digest": 5}),
]


@pytest.mark.parametrize(("field", "arguments"), STREAM_FIELDS, ids=str)
def test_stream_bins_names_the_field(either, field, arguments):
    with pytest.raises(InvalidRequestError) as caught:
        next(either.stream_bins("rows", **arguments))
    assert caught.value.metadata["field"] == field
    assert field.rpartition(".")[2] in str(caught.value)
    assert isinstance(caught.value, ValueError)


RAW_FIELDS = [  # what the client's Topology and Skips refuse before a request is made
    ("topology.world_size", {"topology": {"world_size": 0}}),
    ("topology.world_size", {"topology": {"world_size": -5}}),
    ("topology.workers_per_rank", {"topology": {"workers_per_rank": 0}}),
    ("topology.workers_per_rank", {"topology": {"workers_per_rank": -1}}),
    ("topology.batch_size", {"topology": {"batch_size": 0}}),
    ("topology.batch_size", {"topology": {"batch_size": -1}}),
    ("topology.batch_size", {"topology": {"batch_schedule": STAGES}}),
    ("topology.batch_schedule", {"topology": {"batch_size": 0, "batch_schedule": [{"global_batch_size": 4}]}}),
    ("topology.batch_schedule", {"topology": {"batch_size": 0, "batch_schedule": STAGES * 1001}}),
    ("topology.batch_schedule", {"topology": {"batch_size": 0, "batch_schedule": STAGES * 2}}),
    (
        "topology.batch_schedule",
        {"topology": {"batch_size": 0, "batch_schedule": [{"bins": 3, "global_batch_size": 4}]}},
    ),
    ("topology.batch_schedule", {"topology": {"batch_size": 0, "batch_schedule": [{"tokens": 0}]}}),
    ("topology.batch_schedule", {"topology": {"batch_size": 0, "batch_schedule": STAGES, "accumulation": 3}}),
    (
        "topology.batch_schedule",
        {"topology": {"batch_size": 0, "batch_schedule": STAGES, "mode": "STREAM_MODE_INDEPENDENT"}},
    ),
    ("topology.start_position", {"topology": {"start_position": -1}}),
    ("topology.remainder", {"topology": {"remainder": 99}}),
    ("topology.mode", {"topology": {"mode": 3}}),
    ("topology.balance", {"topology": {"balance": 4}}),
    ("topology.balance", {"topology": {"balance": "BALANCE_MICRO_STEP", "mode": "STREAM_MODE_INDEPENDENT"}}),
    ("topology.accumulation", {"topology": {"accumulation": 0}}),
    ("topology.accumulation", {"topology": {"accumulation": -2}}),
    ("topology.cost_linear", {"topology": {"cost_linear": -1}}),
    ("topology.cost_linear", {"topology": {"cost_linear": 2**63 - 1, "balance": "BALANCE_OPTIMIZER_STEP"}}),
    ("skip", {"skip": [pb.PositionRange(first=-1, end=3)]}),
    ("skip", {"skip": [pb.PositionRange(first=3, end=3)]}),
    ("skip", {"skip": [pb.PositionRange(first=5, end=3)]}),
    ("skip", {"skip": [pb.PositionRange(first=1, end=2), pb.PositionRange(first=0, end=-1)]}),
]


@pytest.mark.parametrize(("field", "arguments"), RAW_FIELDS, ids=str)
def test_a_request_without_the_client_s_checks_names_the_field(either, field, arguments):
    with pytest.raises(InvalidRequestError) as caught:
        raw_stream(either, **arguments)
    assert caught.value.metadata["field"] == field
    assert field.rpartition(".")[2] in str(caught.value)


def test_every_field_of_a_stream_is_in_the_tables():
    in_table = {field.partition(".end")[0] for field, _ in STREAM_FIELDS + RAW_FIELDS}
    others = ("dataset", "topology", "wire_version", "dataset_digest", "run_id", "with_tokens")  # which may be any
    fields = [f.name for f in pb.StreamBinsRequest.DESCRIPTOR.fields if f.name not in others]
    fields += [f"topology.{f.name}" for f in pb.Topology.DESCRIPTOR.fields]
    assert in_table == set(fields)


def test_a_request_that_nothing_is_missing_in(either):
    assert raw_stream(either).HasField("header")


@pytest.mark.parametrize(
    ("call", "answers"),
    [
        ("stream_bins", lambda client, skip: raw_stream(client, skip=skip)),
        (
            "get_bins",
            lambda client, skip: client._transport.answer(
                GET_BINS,
                pb.GetBinsRequest(dataset="rows", positions=[0], skip=skip, wire_version=WIRE_VERSION),
                TIMEOUT_SECONDS,
            ),
        ),
        (
            "locate_sequences",
            lambda client, skip: client._transport.answer(
                LOCATE_SEQUENCES, pb.LocateSequencesRequest(dataset="rows", ids=[1], skip=skip), TIMEOUT_SECONDS
            ),
        ),
    ],
)
def test_every_call_checks_its_ranges(either, call, answers):
    ranges = [pb.PositionRange(first=2 * i, end=2 * i + 1) for i in range(MAX_SKIPS + 1)]
    assert answers(either, ranges[:MAX_SKIPS])
    with pytest.raises(RequestTooLargeError, match=f"holds {MAX_SKIPS + 1} ranges; give at most {MAX_SKIPS}") as caught:
        answers(either, ranges)
    assert caught.value.metadata == {"field": "skip", "limit": str(MAX_SKIPS)}
    with pytest.raises(InvalidRequestError, match="skip 7:7 is empty") as caught:
        answers(either, [pb.PositionRange(first=7, end=7)])
    assert caught.value.metadata["field"] == "skip"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("positions", {"positions": [-1]}),
        ("positions", {"positions": [0, 10**6, 0]}),
        ("positions", {"positions": [2**63]}),
        ("positions", {"positions": [2**70]}),
        ("positions", {"positions": [0.5]}),
        ("positions", {"positions": [[0, 1]]}),
        ("seed", {"positions": [0], "seed": -1}),
        ("epoch", {"positions": [0], "epoch": 2**64}),
    ],
    ids=str,
)
def test_get_bins_names_the_field(either, field, arguments):
    with pytest.raises(InvalidRequestError) as caught:
        either.get_bins("rows", **arguments)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("ids", {"ids": [1.5]}),
        ("ids", {"ids": [2**63]}),
        ("ids", {"ids": ["a"]}),
        ("epoch", {"ids": [1], "epoch": -1}),
        ("topology.world_size", {"ids": [1], "topology": Topology(world_size=2**31)}),
        ("topology.start_position", {"ids": [1], "topology": Topology(start_position=10**9)}),
        ("topology.mode", {"ids": [1], "topology": Topology(mode="independent")}),
        ("topology.cost_linear", {"ids": [1], "topology": Topology(balance="micro-step", cost_linear=2**62)}),
    ],
    ids=str,
)
def test_locate_names_the_field(either, field, arguments):
    with pytest.raises(InvalidRequestError) as caught:
        either.locate("rows", **arguments)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("world_size", {"world_size": 0}),
        ("batch_size", {"batch_size": 0}),
        ("workers_per_rank", {"workers_per_rank": -1}),
        ("remainder", {"remainder": 99}),
        ("balance", {"balance": 77}),
        ("accumulation", {"accumulation": 0}),
        ("cost_linear", {"cost_linear": -1}),
    ],
    ids=str,
)
def test_locate_without_the_client_s_checks_names_the_field(either, field, message):
    request = pb.LocateSequencesRequest(dataset="rows", ids=[1], topology=pb.Topology(**(WHOLE | message)))
    with pytest.raises(InvalidRequestError) as caught:
        either._transport.answer(LOCATE_SEQUENCES, request, TIMEOUT_SECONDS)
    assert caught.value.metadata["field"] == f"topology.{field}"


@pytest.fixture
def most_in_step(embedded):
    """The most bins of all ranks in one step of `rows`: fewer where a bin holds more sequences."""
    info = embedded.get_dataset("rows")
    return min(MAX_BINS_PER_OPTIMIZER_STEP, int(MAX_SEQUENCES_PER_STEP / (info.num_sequences / info.num_bins)))


def test_steps_that_are_too_large(either, most_in_step):
    a_seventh = most_in_step // 7
    for field, limit, arguments in (
        ("topology.batch_size", most_in_step, {"batch_size": BIG}),
        ("topology.world_size", most_in_step, {"world_size": BIG}),
        ("topology.world_size", a_seventh, {"world_size": a_seventh + 1, "batch_size": 7}),
    ):
        with pytest.raises(RequestTooLargeError, match=f"more than {most_in_step} bins in one step") as caught:
            next(either.stream_bins("rows", topology=Topology(**arguments)))
        assert caught.value.metadata == {"field": field, "limit": str(limit)}
    assert either.stream_bins("rows", topology=Topology(world_size=a_seventh, batch_size=7)).header.num_steps == 1


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_batch_of_a_schedule_that_is_too_large_is_refused_in_its_unit(either, most_in_step, accumulation):
    limit = most_in_step if accumulation == 1 else MAX_BINS_PER_OPTIMIZER_STEP

    def topology(size):
        schedule = BatchSchedule((BatchPhase(0, in_tokens=False, size=size),))
        return Topology(world_size=2, accumulation=accumulation, batch_schedule=schedule)

    unit = 2 * accumulation  # a global batch is a multiple of this
    most = limit // unit * unit
    with pytest.raises(
        RequestTooLargeError, match=f"a global batch of {most + unit} bins; it can have {limit}"
    ) as caught:
        next(either.stream_bins("rows", topology=topology(most + unit)))
    assert caught.value.metadata == {"field": "topology.batch_schedule", "limit": str(limit)}
    with pytest.raises(RequestTooLargeError, match=r"asks for \d+ bins in one message") as caught:
        next(either.stream_bins("rows", topology=topology(most)))  # the batch of one rank, without accumulation
    assert caught.value.metadata["field"] == "topology.batch_schedule"


@pytest.mark.parametrize("balance", ["micro-step", "optimizer-step"])
def test_optimizer_steps_that_are_too_large(either, balance):
    """Bins change places within a window, so that it must be held whole; without a balance nothing is."""
    limit = MAX_BINS_PER_OPTIMIZER_STEP // 7
    shape = {"world_size": 7, "accumulation": limit + 1}
    with pytest.raises(
        RequestTooLargeError, match=f"{MAX_BINS_PER_OPTIMIZER_STEP} bins in one optimizer step"
    ) as caught:
        next(either.stream_bins("rows", topology=Topology(**shape, balance=balance)))
    assert caught.value.metadata == {"field": "topology.accumulation", "limit": str(limit)}
    assert either.stream_bins("rows", topology=Topology(**shape)).header.num_steps > 0
    assert len(
        next(either.stream_bins("rows", topology=Topology(**(shape | {"accumulation": limit}), balance=balance)))
    )


def test_checked_topologies_are_kept_but_for_long_messages():
    requests._topology.cache_clear()
    source = SimpleNamespace(num_bins=100, max_seq_len=10)
    shape = Topology(world_size=2, workers_per_rank=3, batch_size=4)
    for _ in range(2):
        assert requests.topology(topology_message(shape), source, 0, 500) == shape
    assert requests._topology.cache_info()[:2] == (1, 1)  # hits and misses
    stuffed = b"\xfa\x7f\xd0\x0f" + bytes(2000)  # a field that there is not, of 2,000 bytes
    long = pb.Topology.FromString(topology_message(shape).SerializeToString() + stuffed)
    assert requests.topology(long, source, 0, 500) == shape
    assert requests._topology.cache_info().currsize == 1


def test_sequences_of_a_step_are_bounded_too(embedded, monkeypatch):
    """A last step that is not full is dealt as a whole; where bins hold many sequences, fewer bins make it."""
    info = embedded.get_dataset("rows")
    requests._topology.cache_clear()
    monkeypatch.setattr("packhorse.server.methods.requests.MAX_SEQUENCES_PER_STEP", info.num_sequences // 2)
    with pytest.raises(RequestTooLargeError) as caught:
        next(embedded.stream_bins("rows", topology=Topology(world_size=info.num_bins)))
    limit = int(caught.value.metadata["limit"])
    assert limit == info.num_bins // 2
    assert len(next(embedded.stream_bins("rows", topology=Topology(world_size=limit)))) == 1


def test_messages_that_are_too_large(either, most_in_step):
    calls = {
        "positions": (lambda n: either.get_bins("rows", positions=[0] * n), 3_500_000),
        "topology.batch_size": (
            lambda n: next(either.stream_bins("rows", topology=Topology(batch_size=n))),
            most_in_step,
        ),
        "ids": (lambda n: either.locate("rows", ids=range(n)), 10_001),
    }
    for field, (call, size) in calls.items():
        with pytest.raises(RequestTooLargeError) as caught:
            call(size)
        assert caught.value.metadata["field"] == field
        limit = int(caught.value.metadata["limit"])
        assert limit < size
        assert str(limit) in str(caught.value)
    assert len(either.locate("rows", ids=range(limit))) == limit


def test_a_request_beyond_grpc_s_own_limit_is_not_tried_again(client):
    with pytest.raises(RequestTooLargeError, match="larger than max"):
        client.locate("rows", ids=range(10**9, 10**9 + 10**6))


@pytest.fixture
def stub(running_server):
    with grpc.insecure_channel(running_server.target) as channel:
        yield packing_pb2_grpc.PackingServiceStub(channel)


def refusal_of(call):
    """The client's exception of what a raw stub raises."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call) if hasattr(call, "__next__") else call()
    return exception_of(caught.value, "target")


@pytest.mark.parametrize("field", ["remainder", "mode", "balance"])
@pytest.mark.parametrize("value", [0, 77])
def test_choices_must_be_made(stub, field, value):
    topology = pb.Topology(**(WHOLE | {field: value}))
    request = pb.StreamBinsRequest(dataset="rows", topology=topology, wire_version=WIRE_VERSION)
    error = refusal_of(stub.StreamBins(request))
    assert isinstance(error, InvalidRequestError)
    assert error.metadata["field"] == f"topology.{field}"
    assert "must be specified, one of: " in str(error)
    assert "UNSPECIFIED" not in str(error)


@pytest.mark.parametrize("field", sorted(WHOLE))
def test_a_located_topology_must_be_whole(stub, field):
    topology = pb.Topology(**{name: value for name, value in WHOLE.items() if name != field})
    request = pb.LocateSequencesRequest(dataset="rows", ids=[1], topology=topology)
    error = refusal_of(lambda: stub.LocateSequences(request))
    assert error.metadata["field"] == f"topology.{field}"


def test_status_details_are_complete(stub):
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    topology = pb.Topology(**(WHOLE | {"world_size": 0}))
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.StreamBins(pb.StreamBinsRequest(dataset="rows", topology=topology, wire_version=WIRE_VERSION)))
    status = rpc_status.from_call(caught.value)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.domain, info.reason) == ("packhorse.v1", "INVALID_FIELD")
    assert bad.field_violations[0].field == info.metadata["field"] == "topology.world_size"
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("call", ["get_dataset", "stream_bins", "get_bins", "locate"])
@pytest.mark.parametrize("name", ["", "nothing", "../up/rows", "rows/", ".", "é\0"])
def test_unknown_datasets(either, call, name):
    from packhorse.client.errors import DatasetNotFoundError

    calls = {
        "get_dataset": lambda: either.get_dataset(name),
        "stream_bins": lambda: next(either.stream_bins(name)),
        "get_bins": lambda: either.get_bins(name, positions=[0]),
        "locate": lambda: either.locate(name, ids=[0]),
    }
    with pytest.raises(DatasetNotFoundError, match="this server has: few, named, rows, truncated") as caught:
        calls[call]()
    assert caught.value.metadata == {"dataset": name}
    assert isinstance(caught.value, LookupError)
