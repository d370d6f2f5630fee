"""The exception tree: drawn whole, mapped whole, and what gRPC itself answers."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import status_pb2

from packhorse import client
from packhorse.client import RetryPolicy, StreamInterruptedError, connect, errors
from packhorse.client.errors import ServerUnavailableError
from packhorse.client.options import PackOptions
from packhorse.server.base.faults import ServiceError
from packhorse.server.service.status import STATUS_OF_REASON, status_details
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb


def all_exceptions():
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PackhorseError)
    }


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = {}
    parents = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│ ├└─]*)(\w+Error)\b(?: \(an? (\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            parents[depth:] = [match[2]]
            drawn[match[2]] = {parents[depth - 1]} if depth else {"Exception"}
            drawn[match[2]] |= {match[3]} - {None}
    assert drawn == {name: {base.__name__ for base in kind.__bases__} for name, kind in all_exceptions().items()}


def test_every_exception_is_public_and_documented():
    for name, kind in all_exceptions().items():
        assert getattr(errors, name) is kind
        assert kind.__doc__


def test_every_exception_is_raised_for_a_reason_or_without_a_server():
    mapped = set(errors.EXCEPTION_OF_REASON.values())
    abstract_or_own = {
        errors.PackhorseError,
        errors.TransientError,
        errors.DamagedAnswerError,
        errors.ServerUnavailableError,
        errors.StreamInterruptedError,
    }
    assert mapped | abstract_or_own == set(all_exceptions().values())
    assert not mapped & abstract_or_own


def test_no_server_at_all():
    with connect("127.0.0.1:1", retry=RetryPolicy(deadline_seconds=0)) as nobody:
        with pytest.raises(ServerUnavailableError, match=r"^127\.0\.0\.1:1: UNAVAILABLE"):
            nobody.list_datasets()
        stream = nobody.stream_bins("rows", topology=Topology(start_position=12), epoch=3)
        with pytest.raises(StreamInterruptedError, match="position 12 of epoch 3") as caught:
            next(stream)
        assert (caught.value.position, caught.value.step) == (12, 0)
        with pytest.raises(StreamInterruptedError):
            nobody.stream_bins("rows").header  # noqa: B018


def test_a_server_that_is_none(running_server):
    address = running_server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    with connect(address, retry=RetryPolicy(deadline_seconds=0)) as http, pytest.raises(client.PackhorseError):
        http.list_datasets()


def test_a_token_does_not_travel_in_plain_text(running_unix_server):
    with pytest.raises(
        ValueError, match=r"would be sent to 'trainer:50051' in plain text: give ca=… \(TLS\), or insecure"
    ):
        connect("127.0.0.1:50051,trainer:50051", token="secret")
    assert connect("trainer:50051", token="secret", insecure=True).target
    with connect(running_unix_server.target, token="secret") as local:
        assert local.get_dataset("few").num_sequences == 7
    assert connect("127.0.0.1:1", token="secret", credentials=grpc.ssl_channel_credentials()).target


def test_a_stream_s_error_survives_a_worker_s_boundary():
    """DataLoader workers send exceptions as pickles."""
    for error in (
        errors.DigestMismatchError("other", {"differs": "counts"}),
        errors.TooManyStreamsError("full", {}, retry_after_seconds=2.0),
        errors.StreamInterruptedError("broke", position=40, step=5),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.metadata) == (type(error), str(error), error.metadata)
        assert vars(again) == vars(error)


@pytest.fixture
def aborting():
    """Function: the client's exception for what a server aborts with: (status, message, trailing metadata)."""
    abort = {}

    def answer(request, context):
        context.abort_with_status(
            SimpleNamespace(code=abort["code"], details=abort["message"], trailing_metadata=abort["metadata"])
        )

    handler = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=pb.GetDatasetRequest.FromString)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_registered_method_handlers("packhorse.v1.PackingService", {"GetDataset": handler})
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("packhorse.v1.PackingService", {"GetDataset": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def caught(code, message, metadata):
        abort.update(code=code, message=message, metadata=metadata)
        policy = RetryPolicy(deadline_seconds=0)
        with connect(f"127.0.0.1:{port}", retry=policy) as one, pytest.raises(errors.PackhorseError) as caught:
            one.get_dataset("rows")
        return caught.value

    yield caught
    server.stop(0)


DETAILS = "grpc-status-details-bin"
BROKEN = Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, errors.DatasetNotFoundError),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
        (grpc.StatusCode.INTERNAL, errors.ServerUnavailableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.TooManyRequestsError),
    ],
)
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((DETAILS, b""),),
        ((DETAILS, b"\xff\xfe garbage"),),
        ((DETAILS, status_pb2.Status(code=3, message="another").SerializeToString()),),
        ((DETAILS, status_pb2.Status(code=5, message="no", details=[BROKEN]).SerializeToString()),),
    ],
    ids=["none", "empty", "garbage", "another's", "undecodable"],
)  # fmt: skip
def test_without_readable_details_the_status_is_left(aborting, code, kind, metadata):
    error = aborting(code, "no", metadata)
    assert type(error) is kind
    assert "no" in str(error)


@pytest.mark.parametrize("letter", ["x", "€", "\ud800"])
def test_what_the_server_says_fits_into_headers(aborting, letter):
    said = ServiceError(
        pb.ERROR_REASON_INVALID_FIELD,
        letter * 100_000,
        {"field": "f"} | {f"fact{number}": letter * 10_000 for number in range(50)},
    )
    details = status_details(said)
    assert len(details) <= 4096
    assert len(said.message.encode()) <= 1024
    error = aborting(STATUS_OF_REASON[said.reason], said.message, ((DETAILS, details),))
    assert type(error) is errors.InvalidRequestError
    assert str(error) == said.message
    assert error.metadata == said.metadata
    assert error.metadata["field"] == "f"


def test_errors_quote_a_bounded_part_of_values():
    long = "x" * 100_000
    with connect("127.0.0.1:1") as nobody:
        for use in (
            lambda: nobody.get_bins("rows", positions=[long] * 3),
            lambda: nobody.get_bins("rows", positions=[[1], [2, 3]]),
            lambda: nobody.get_bins("rows", positions=7),
            lambda: nobody.pack_sequences([long] * 100, 10),
            lambda: nobody.pack_sequences([1], 10, packing=PackOptions(algorithm=[long] * 100)),
            lambda: nobody.stream_bins("rows", epoch=[long] * 100),
            lambda: nobody.stream_bins("rows", seed=[long] * 100),
            lambda: nobody.pack_stream([long] * 100),
        ):
            with pytest.raises(errors.InvalidRequestError) as caught:
                use()
            assert len(str(caught.value)) < 1500
            assert caught.value.metadata["field"]
