"""Reasons, statuses and exceptions: complete, one to one, and nothing internal in what travels."""

import asyncio
import re
import threading
from pathlib import Path

import grpc
import pytest
from tests.faulty_server import Faults

from packhorse.client import PackhorseError, StreamInterruptedError, connect
from packhorse.client.errors import EXCEPTION_OF_REASON, ServerFaultError, TooManyStreamsError
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.server.base.faults import ServiceError, reason_name
from packhorse.server.service.lanes import Lanes
from packhorse.server.service.servicer import PackingServicer
from packhorse.server.service.status import STATUS_OF_REASON
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import header_checksum

REASONS = [value for value in pb.ErrorReason.values() if value != pb.ERROR_REASON_UNSPECIFIED]
SECRET = "/srv/secret/pools.npy line 7"
NO_RETRY = RetryPolicy(deadline_seconds=0)


class Failing:
    """A backend whose every method raises `error`; a stream does so after its header."""

    error: Exception

    def fail(self, request):
        raise self.error

    list_datasets = get_dataset = get_bins_in_slices = locate_in_slices = pack_in_slices = fail

    def stream_bins(self, request):
        header = pb.StreamHeader(num_steps=3, id_type=pb.ID_TYPE_UINT32)
        header.checksum = header_checksum(request, header)
        yield pb.StreamBinsResponse(header=header)
        raise self.error

    def pack_session(self):
        return self

    answer_in_slices = fail


@pytest.fixture(scope="module")
def failing():
    """(backend, metrics, target) of a servicer in a thread of this process."""
    backend = Failing()
    metrics = Metrics(list)
    lanes = Lanes.for_this_machine()
    started = threading.Event()
    found = {}

    async def run():
        server = grpc.aio.server()
        servicer = PackingServicer(backend, metrics, lanes, StreamLimit(4))
        packing_pb2_grpc.add_PackingServiceServicer_to_server(servicer, server)
        found["port"] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        started.set()
        await found["stop"].wait()
        await server.stop(1)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(30)
    yield backend, metrics, f"127.0.0.1:{found['port']}"
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(30)
    assert not thread.is_alive()
    lanes.close()


CALLS = {
    "list_datasets": lambda client: client.list_datasets(),
    "get_dataset": lambda client: client.get_dataset("x"),
    "get_bins": lambda client: client.get_bins("x", positions=[0]),
    "locate": lambda client: client.locate("x", ids=[0]),
    "pack_sequences": lambda client: client.pack_sequences([1], 2),
    "stream_bins": lambda client: list(client.stream_bins("x")),
    "pack_stream": lambda client: client.pack_stream(2).send([1], [1]),
}


def caught_from(target, call="get_dataset"):
    with connect(target, retry=NO_RETRY) as client, pytest.raises(PackhorseError) as caught:
        CALLS[call](client)
    cause = caught.value.__cause__
    return cause if isinstance(cause, PackhorseError) else caught.value


def test_every_reason_has_a_status_and_an_exception():
    assert set(STATUS_OF_REASON) == set(REASONS)
    assert set(EXCEPTION_OF_REASON) == set(REASONS)
    assert len(set(EXCEPTION_OF_REASON.values())) == len(REASONS)
    assert grpc.StatusCode.UNKNOWN not in STATUS_OF_REASON.values()


def test_the_protocol_states_the_status_of_every_reason():
    proto = Path(__file__).parents[3] / "proto/packhorse/v1/packing.proto"
    stated = re.findall(r"// ([A-Z_]+): [^\n]*\n(?: *//[^\n]*\n)* *ERROR_REASON_(\w+) =", proto.read_text())
    assert sorted(stated) == sorted((STATUS_OF_REASON[reason].name, reason_name(reason)) for reason in REASONS)


@pytest.mark.parametrize("reason", REASONS, ids=pb.ErrorReason.Name)
def test_every_reason_comes_back_as_its_exception(failing, reason):
    backend, _, target = failing
    metadata = {"field": "rank", "dataset": "é", "differs": "counts"}
    backend.error = ServiceError(reason, "what a person reads", metadata, retry_after_seconds=1.25)
    error = caught_from(target)
    assert type(error) is EXCEPTION_OF_REASON[reason]
    assert str(error) == "what a person reads"
    assert error.metadata == metadata
    assert error.retry_after_seconds == 1.25
    backend.error = ServiceError(reason, "again", {"field": "x"})
    assert caught_from(target).retry_after_seconds is None


@pytest.mark.parametrize("call", CALLS)
def test_what_fails_inside_stays_inside(failing, caplog, call):
    backend, metrics, target = failing
    before = metrics.errors.labels("INTERNAL")._value.get()
    backend.error = RuntimeError(SECRET)
    error = caught_from(target, call)
    assert type(error) is ServerFaultError
    incident = error.metadata["incident"]
    assert incident in str(error)
    everything = f"{error} {error.metadata}"
    assert "secret" not in everything
    assert "Traceback" not in everything
    assert "RuntimeError" not in everything
    assert any(incident in record.getMessage() and record.exc_info for record in caplog.records)
    assert metrics.errors.labels("INTERNAL")._value.get() == before + 1


def test_nothing_internal_in_grpc_s_own_details(failing):
    backend, _, target = failing
    backend.error = RuntimeError(SECRET)
    with grpc.insecure_channel(target) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetDataset(pb.GetDatasetRequest(name="x"), timeout=10)
    trailers = str(caught.value.trailing_metadata())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details() + trailers + caught.value.debug_error_string()


def test_a_stream_beyond_the_limit_waits_until_another_closes(corpus, make_server):
    lasting = Faults(steps_per_block=2, block_seconds=1)  # a stream that lasts until it is closed
    with (
        make_server(corpus.root, "--max-streams", "1", faults=lasting) as server,
        connect(server.target, retry=NO_RETRY) as hasty,
        connect(server.target, retry=RetryPolicy(deadline_seconds=60)) as patient,
    ):
        first = hasty.stream_bins("rows")
        next(first)
        with pytest.raises(StreamInterruptedError, match="1 streams are open") as caught:
            next(hasty.stream_bins("rows"))
        refusal = caught.value.__cause__
        assert type(refusal) is TooManyStreamsError
        assert refusal.retry_after_seconds == 1.0
        assert hasty.get_dataset("rows").num_sequences == 2000  # only streams are limited

        came = []
        waiting = threading.Thread(target=lambda: came.append(next(patient.stream_bins("rows"))), daemon=True)
        waiting.start()
        waiting.join(1.5)
        assert waiting.is_alive()
        first.close()
        waiting.join(30)
        assert len(came) == 1
