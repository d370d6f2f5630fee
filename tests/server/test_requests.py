"""Every field out of range is refused by name, by a server and embedded alike."""

import grpc
import pytest

from packhorse.client import InvalidRequestError, RequestTooLargeError
from packhorse.client._grpc import GrpcTransport, exception_of
from packhorse.server.requests import MAX_BINS_PER_STEP
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb

BIG = 2**31 - 1


@pytest.fixture(params=["client", "embedded"])
def either(request):
    return request.getfixturevalue(request.param)


STREAM_FIELDS = [
    ("rank", {"rank": -1}),
    ("rank", {"rank": 1}),
    ("rank", {"rank": 3, "world_size": 3, "mode": "independent"}),
    ("rank", {"rank": 2**31}),
    ("rank", {"rank": 0.5}),
    ("worker", {"worker": -1}),
    ("worker", {"worker": 2, "workers_per_rank": 2}),
    ("worker", {"worker": -(2**40)}),
    ("topology.world_size", {"world_size": 0}),
    ("topology.world_size", {"world_size": -5}),
    ("topology.world_size", {"world_size": 2**31}),
    ("topology.workers_per_rank", {"workers_per_rank": 0}),
    ("topology.workers_per_rank", {"workers_per_rank": "1"}),
    ("topology.batch_size", {"batch_size": 0}),
    ("topology.batch_size", {"batch_size": -1}),
    ("topology.batch_size", {"batch_size": 1.5}),
    ("topology.start_position", {"start_position": -1}),
    ("topology.start_position", {"start_position": 10**9}),
    ("topology.start_position", {"start_position": 2**63}),
    ("topology.remainder", {"remainder": "keep"}),
    ("topology.remainder", {"remainder": None}),
    ("mode", {"mode": "alone"}),
    ("mode", {"mode": 3}),
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


def test_every_field_of_a_stream_is_in_the_table():
    in_table = {field for field, _ in STREAM_FIELDS}
    fields = [f.name for f in pb.StreamBinsRequest.DESCRIPTOR.fields if f.name not in ("dataset", "topology")]
    fields += [f"topology.{f.name}" for f in pb.Topology.DESCRIPTOR.fields]
    assert in_table == set(fields)


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
        ("topology.world_size", {"ids": [1], "world_size": 0}),
        ("topology.batch_size", {"ids": [1], "world_size": 1, "batch_size": 0}),
        ("topology.workers_per_rank", {"ids": [1], "world_size": 1, "workers_per_rank": -1}),
        ("topology.start_position", {"ids": [1], "world_size": 1, "start_position": 10**9}),
        ("topology.remainder", {"ids": [1], "world_size": 1, "remainder": "keep"}),
    ],
    ids=str,
)
def test_locate_names_the_field(either, field, arguments):
    with pytest.raises(InvalidRequestError) as caught:
        either.locate("rows", **arguments)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("field", "limit", "arguments"),
    [
        ("topology.batch_size", MAX_BINS_PER_STEP, {"batch_size": BIG}),
        ("topology.world_size", MAX_BINS_PER_STEP, {"world_size": BIG}),
        ("topology.world_size", MAX_BINS_PER_STEP // 7, {"world_size": MAX_BINS_PER_STEP // 7 + 1, "batch_size": 7}),
    ],
)
def test_steps_that_are_too_large(either, field, limit, arguments):
    with pytest.raises(RequestTooLargeError, match=str(MAX_BINS_PER_STEP)) as caught:
        next(either.stream_bins("rows", **arguments))
    assert caught.value.metadata == {"field": field, "limit": str(limit)}


def test_messages_that_are_too_large(either):
    calls = {
        "positions": (lambda n: either.get_bins("rows", positions=[0] * n), 3_500_000),
        "topology.batch_size": (
            lambda n: next(either.stream_bins("rows", topology=Topology(batch_size=n))),
            MAX_BINS_PER_STEP,
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
    transport = GrpcTransport(running_server.target)
    yield transport._in_order()[0].stub
    transport.close()


def refusal_of(call):
    """The client's exception of what a raw stub raises."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call) if hasattr(call, "__next__") else call()
    return exception_of(caught.value, "target")


GOOD = {"world_size": 1, "workers_per_rank": 1, "batch_size": 1}


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("topology.world_size", pb.StreamBinsRequest(dataset="rows")),
        (
            "topology.remainder",
            pb.StreamBinsRequest(dataset="rows", topology=pb.Topology(**GOOD), mode="STREAM_MODE_PARTITION"),
        ),
        (
            "topology.remainder",
            pb.StreamBinsRequest(dataset="rows", topology=pb.Topology(**GOOD, remainder=99), mode=1),
        ),
        ("mode", pb.StreamBinsRequest(dataset="rows", topology=pb.Topology(**GOOD, remainder=1))),
        ("mode", pb.StreamBinsRequest(dataset="rows", topology=pb.Topology(**GOOD, remainder=1), mode=77)),
    ],
)
def test_choices_must_be_made(stub, field, request_):
    error = refusal_of(stub.StreamBins(request_))
    assert isinstance(error, InvalidRequestError)
    assert error.metadata["field"] == field
    if field != "topology.world_size":
        assert "must be specified, one of: " in str(error)
        assert "UNSPECIFIED" not in str(error)


def test_a_located_topology_must_be_whole(stub):
    request = pb.LocateSequencesRequest(dataset="rows", ids=[1], topology=pb.Topology(**GOOD))
    error = refusal_of(lambda: stub.LocateSequences(request))
    assert error.metadata["field"] == "topology.remainder"


def test_status_details_are_complete(stub):
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    with pytest.raises(grpc.RpcError) as caught:
        list(stub.StreamBins(pb.StreamBinsRequest(dataset="rows")))
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
    from packhorse.client import DatasetNotFoundError

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
