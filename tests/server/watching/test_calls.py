"""Every call is followed to its end, whatever its kind and however it ends."""

import asyncio
import gc
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tests.waiting import some_turns

from packhorse.client import RetryPolicy, connect
from packhorse.server.app.config import ServeConfig
from packhorse.server.service.interceptor import Interceptor
from packhorse.server.watching import tracing
from packhorse.server.watching.call_metrics import CallMetrics
from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics, values_of
from packhorse.topology import Topology
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
        interceptor = Interceptor([CallMetrics(metrics), recorder], None, lambda _error: None)
        server = grpc.aio.server(interceptors=(interceptor,))
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
    wait_until(lambda: recorder.calls[-1].num_sent and values_of(metrics.blocked_streams)[("StreamBins",)] == 1)
    reading.cancel()
    call = seen("StreamBins")
    assert call.status is grpc.StatusCode.CANCELLED
    assert 0 < call.num_sent < 100
    assert call.sending_since is not None
    assert values_of(metrics.blocked_streams) == {("StreamBins",): 0, ("PackStream",): 0}


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
        watcher.waits(call, None)
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
        return grpc.unary_stream_rpc_method_handler(stream, request_deserializer=pb.StreamBinsRequest.FromString)

    details = SimpleNamespace(method=f"/{PACKING}/StreamBins", invocation_metadata=())
    interceptor = Interceptor([Recorder()], None, lambda _error: None)
    handler = await interceptor.intercept_service(handler_of, details)
    context = Leaving()
    task = asyncio.ensure_future(handler.unary_stream(b"", context))
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


@pytest.mark.skipif(find_spec("opentelemetry") is not None, reason="OpenTelemetry is installed")
def test_without_opentelemetry_the_extra_is_named(corpus):
    flags = ("--data-root", corpus.root, "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:4318")
    command = [sys.executable, "-m", "packhorse.cli", "serve", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'packhorse[otel]'" in done.stderr


def test_an_endpoint_is_a_url(tmp_path):
    with pytest.raises(
        ValueError, match=r"otlp_endpoint must be a URL for OTLP over HTTP, e\.g\. http://collector:4318"
    ):
        ServeConfig(data_root=tmp_path, otlp_endpoint="collector:4318")


@pytest.fixture
def collector():
    """(URL, bodies that came) of a collector."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()


def test_a_call_has_a_span_and_each_block_one_below_it(corpus, make_server, collector, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, bodies = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    topology = Topology(world_size=4)
    with make_server(corpus.root, "--otlp-endpoint", url) as server:
        with connect(server.target, retry=RetryPolicy(deadline_seconds=10)) as client:
            blocks = list(client.stream_bins("rows", epoch=3, rank=2, topology=topology))
            client.get_dataset("few")
        server.terminate()
        server.wait()
    assert {path for path, _ in bodies} == {"/v1/traces"}
    spans = [
        span
        for _, body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]

    def attributes(span):
        return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}

    (stream,) = [span for span in spans if span.name == "packhorse.v1.PackingService/StreamBins"]
    assert attributes(stream)["packhorse.num_messages"] == len(blocks) + 1
    found = [span for span in spans if span.parent_span_id == stream.span_id]
    assert [attributes(span)["packhorse.step"] for span in found] == [block.steps[0] for block in blocks]
    for span in found:
        assert {"packhorse.dataset": "rows", "packhorse.rank": 2, "packhorse.epoch": 3}.items() <= attributes(
            span
        ).items()
        assert span.end_time_unix_nano >= span.start_time_unix_nano
    assert [span for span in spans if span.name == "packhorse.v1.PackingService/GetDataset"]


@pytest.mark.skipif(find_spec("opentelemetry") is None, reason="OpenTelemetry is not installed")
def test_a_collector_that_does_not_answer_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.01)
    answered, began = threading.Event(), threading.Event()

    class Provider:
        def force_flush(self, timeout_millis=30_000):
            began.set()
            assert answered.wait(20)

    traces = tracing.Tracing("http://127.0.0.1:9", "1")
    own, traces._provider = traces._provider, Provider()
    traces.close()
    assert began.wait(20)
    assert not answered.is_set()
    answered.set()
    own.shutdown()
