"""Spans of calls and blocks, as a collector receives them; and what is said where OpenTelemetry is missing."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec

import pytest

from packhorse.client import RetryPolicy, connect
from packhorse.server.access.config import ServeConfig
from packhorse.server.watching import tracing
from packhorse.topology import Topology


@pytest.mark.skipif(find_spec("opentelemetry") is not None, reason="OpenTelemetry is installed")
def test_without_opentelemetry_the_extra_is_named(corpus):
    flags = ("--data-root", corpus.root, "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:4318")
    command = [sys.executable, "-m", "packhorse.cli", "serve", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'packhorse[otel]'" in done.stderr


def test_an_endpoint_is_a_url(tmp_path):
    with pytest.raises(
        ValueError, match=r"--otlp-endpoint must be a URL for OTLP over HTTP, e\.g\. http://collector:4318"
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
