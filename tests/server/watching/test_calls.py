"""Every call is followed to its end, whatever its kind and however it ends."""

import asyncio
import gc
import threading
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tests.waiting import some_turns

from packhorse.server.watching.calls import Call, CallMetrics, Calls, Watcher
from packhorse.server.watching.metrics import Metrics, values_of
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

LARGE = bytes(1 << 20)
PACKING = "packhorse.v1.PackingService"


class Recorder(Watcher):
    """Keeps every call that began, and those that ended."""

    def __init__(self):
        self.calls, self.over = [], []

    def began(self, call):
        self.calls.append(call)

    def ended(self, call):
        self.over.append(call)

    def of(self, name):
        return [call for call in self.over if call.method.endswith(f"/{name}")]


class Servicer(packing_pb2_grpc.PackingServiceServicer):
    async def GetDataset(self, request, context):  # noqa: N802
        if request.name == "none":
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is none")
        if request.name == "bug":
            raise RuntimeError("/srv/secret")
        return pb.GetDatasetResponse(dataset=pb.Dataset(name=request.name))

    async def StreamBins(self, request, context):  # noqa: N802
        context.add_done_callback(lambda _: None)
        yield pb.StreamBinsResponse(header=pb.StreamHeader(num_steps=100))
        for step in range(request.epoch):
            yield pb.StreamBinsResponse(block=pb.StreamBlock(first_step=step, bins=pb.Bins(ids=LARGE)))


@pytest.fixture(scope="module")
def followed():
    """(recorder, metrics, channel) of a server in a thread of this process."""
    recorder, metrics, found, started = Recorder(), Metrics(list), {}, threading.Event()

    async def run():
        server = grpc.aio.server(interceptors=(Calls([CallMetrics(metrics), recorder]),))
        packing_pb2_grpc.add_PackingServiceServicer_to_server(Servicer(), server)
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        found["port"] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found["stop"], found["loop"] = asyncio.Event(), asyncio.get_running_loop()
        started.set()
        await found["stop"].wait()
        await server.stop(1)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(30)
    with grpc.insecure_channel(f"127.0.0.1:{found['port']}") as channel:
        yield recorder, metrics, channel
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(30)


@pytest.fixture
def seen(followed, wait_until):
    """Function: the one call of a method that ended since the test began."""
    recorder, _, _ = followed
    recorder.over.clear()

    def only(name):
        wait_until(lambda: recorder.of(name))
        (call,) = recorder.of(name)
        return call

    return only


@pytest.fixture
def stub(followed):
    return packing_pb2_grpc.PackingServiceStub(followed[2])


def test_a_single_call(stub, seen):
    request = pb.GetDatasetRequest(name="corpus")
    answer = stub.GetDataset(request, metadata=(("traceparent", "00-aa-bb-01"),), timeout=10)
    call = seen("GetDataset")
    assert (call.method, call.name) == (f"{PACKING}/GetDataset", "GetDataset")
    assert (call.status, call.message) == (grpc.StatusCode.OK, "")
    assert (call.received_bytes, call.sent_bytes) == (request.ByteSize(), answer.ByteSize())
    assert call.facts() == {"dataset": "corpus"}
    assert call.trace_parent == "00-aa-bb-01"
    assert call.peer.startswith("ipv4:127.0.0.1:")
    assert 0 < call.seconds < 10


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [("none", grpc.StatusCode.NOT_FOUND, "there is none"), ("bug", grpc.StatusCode.UNKNOWN, "RuntimeError")],
)
def test_a_call_that_fails(stub, seen, name, status, message):
    with pytest.raises(grpc.RpcError):
        stub.GetDataset(pb.GetDatasetRequest(name=name), timeout=10)
    call = seen("GetDataset")
    assert (call.status, call.message, call.sent_bytes) == (status, message, 0)


def test_a_stream_that_is_read(stub, seen):
    request = pb.StreamBinsRequest(dataset="corpus", epoch=3, rank=2, worker=1, first_step=7)
    messages = list(stub.StreamBins(request, timeout=30))
    call = seen("StreamBins")
    assert (call.num_sent, call.sent_bytes) == (4, sum(message.ByteSize() for message in messages))
    assert call.facts() == {"dataset": "corpus", "epoch": 3, "rank": 2, "worker": 1, "step": 7}
    assert call.status is grpc.StatusCode.OK
    assert call.sending_since is None


def test_a_stream_that_is_over_leaves_its_request_to_nobody(followed, stub, seen, wait_until):
    recorder, _, _ = followed
    gc.disable()
    try:
        list(stub.StreamBins(pb.StreamBinsRequest(dataset="corpus", epoch=1), timeout=30))
        name = seen("StreamBins").id
        recorder.calls.clear()
        recorder.over.clear()
        wait_until(lambda: name not in {each.id for each in gc.get_objects() if type(each) is Call})
    finally:
        gc.enable()


def test_a_stream_that_nobody_reads_waits_and_says_so(followed, stub, seen, wait_until):
    recorder, metrics, _ = followed
    reading = stub.StreamBins(pb.StreamBinsRequest(dataset="slow", epoch=100))
    next(reading)
    wait_until(lambda: recorder.calls[-1].num_sent and values_of(metrics.blocked_streams)[()] == 1)
    reading.cancel()
    call = seen("StreamBins")
    assert call.status is grpc.StatusCode.CANCELLED
    assert 0 < call.num_sent < 100
    assert call.sending_since is not None
    assert values_of(metrics.blocked_streams) == {(): 0}


def test_calls_of_other_services_and_of_none(followed, stub, seen, wait_until):
    recorder, metrics, channel = followed
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert seen("Check").is_ours is False
    watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())  # it writes by itself
    next(watching)
    watching.cancel()
    assert seen("Watch").status is grpc.StatusCode.CANCELLED
    for name in ("Nothing", "x" * 100):
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/{PACKING}/{name}")(b"", timeout=10)
    assert [call.status for call in recorder.over if call.method == "other"] == [grpc.StatusCode.UNIMPLEMENTED] * 2
    assert values_of(metrics.calls_started)["other",] == 2  # strangers make no series of their own


def test_a_stream_that_resumes_is_counted_once_it_is_open():
    metrics = Metrics(list)
    watcher = CallMetrics(metrics)
    for first_step, num_sent in ((0, 1), (5, 1), (5, 2)):
        call = Call(f"{PACKING}/StreamBins", request=pb.StreamBinsRequest(dataset="corpus", first_step=first_step))
        call.num_sent = num_sent
        watcher.sends(call, None)
        watcher.sent(call, None, 0.25)
    assert values_of(metrics.resumed) == {("corpus",): 1}
    assert values_of(metrics.blocked_seconds) == {("corpus",): 0.75}


class ExecuteBatchError(Exception):
    """Stands in for gRPC's, by its name."""


class Leaving:
    """A context whose client leaves; counts writes that were begun and that came to their end."""

    def __init__(self):
        self.has_left, self.fails = False, False
        self.num_begun = self.num_ended = 0
        self.on_its_way = asyncio.get_running_loop().create_future()

    def cancelled(self):
        return self.has_left

    def peer(self):
        return "ipv4:127.0.0.1:5"

    async def write(self, message):
        self.num_begun += 1
        if self.num_begun > 1:
            await self.on_its_way
        self.num_ended += 1
        if self.fails:
            raise ExecuteBatchError


async def leaving():
    """(context, task) of a stream whose second message is on its way."""

    async def stream(request, context):
        for _ in range(5):
            yield pb.StreamBinsResponse()

    async def handler_of(details):
        return grpc.unary_stream_rpc_method_handler(stream)

    details = SimpleNamespace(method=f"/{PACKING}/StreamBins", invocation_metadata=())
    handler = await Calls([Recorder()]).intercept_service(handler_of, details)
    context = Leaving()
    task = asyncio.ensure_future(handler.unary_stream(pb.StreamBinsRequest(), context))
    while context.num_begun < 2:
        await asyncio.sleep(0)
    return context, task


def test_a_write_goes_on_where_its_call_is_cancelled():
    async def run():
        context, task = await leaving()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (context.num_begun, context.num_ended) == (2, 1)
        context.on_its_way.set_result(None)
        await some_turns()
        assert (context.num_begun, context.num_ended) == (2, 2)

    asyncio.run(run())


@pytest.mark.parametrize("fails", [True, False])
def test_no_write_begins_and_nothing_is_raised_once_the_client_has_left(fails):
    async def run():
        context, task = await leaving()
        context.has_left, context.fails = True, fails
        context.on_its_way.set_result(None)
        await some_turns()
        assert not task.done()  # until gRPC cancels it
        assert context.num_begun == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
