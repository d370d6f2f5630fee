"""Traces: a span for each call, and one for each block of a stream, sent to a collector by OpenTelemetry.

Owns what spans hold. OpenTelemetry is imported where a server is to send traces, and nowhere else; its own
variables (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and so on) apply.
"""

import logging
import threading
import time
from typing import Any

import grpc

from packhorse.formats import require
from packhorse.server.base.logs import Sparing
from packhorse.server.watching.calls import Call, Watcher
from packhorse.v1 import packing_pb2 as pb

CLOSE_SECONDS = 2.0
"""How long the last spans may take to leave: less than a process has after its grace period."""

_PATH = "/v1/traces"
"""Where a collector takes traces over HTTP."""


_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""The exporter's module, and so its logger."""


class Tracing(Watcher):
    """Makes spans of calls; those of health and reflection are left out.

    A span's parent is the caller's, where the call came with a header `traceparent`.

    Args:
        endpoint: a collector's URL, e.g. http://collector:4318; traces go to its /v1/traces.
        version: of this packhorse.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        sdk = require("opentelemetry.sdk.trace", "otel")
        exporter = require(_EXPORTER_LOGGER, "otel")
        export = require("opentelemetry.sdk.trace.export", "otel")
        resources = require("opentelemetry.sdk.resources", "otel")
        logging.getLogger(_EXPORTER_LOGGER).addFilter(Sparing())  # a line for every attempt to reach the collector
        self._api = require("opentelemetry.trace", "otel")
        self._parents = require("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()
        about = {"service.name": "packhorse", "service.version": version}
        self._provider = sdk.TracerProvider(resource=resources.Resource.create(about))
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("packhorse", version)
        self._spans: dict[Call, Any] = {}
        self._block_began: dict[Call, int] = {}

    def began(self, call: Call) -> None:
        """Begins a call's span."""
        if call.is_ours:
            service, _, method = call.method.rpartition("/")
            self._spans[call] = self._tracer.start_span(
                call.method,
                context=self._parents.extract({"traceparent": call.trace_parent}),
                kind=self._api.SpanKind.SERVER,
                attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            )

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Makes a block's span: from when the message before it left until it left itself."""
        span = self._spans.get(call)
        if span is None or not isinstance(message, pb.StreamBinsResponse):
            return
        now = time.time_ns()
        if message.HasField("block"):
            block = self._tracer.start_span(
                "block",
                context=self._api.set_span_in_context(span),
                start_time=self._block_began[call],
                attributes={
                    **_attributes(call),
                    "packhorse.step": message.block.first_step,
                    "packhorse.num_steps": message.block.num_steps,
                    "packhorse.flow_control_seconds": waited_seconds,
                },
            )
            block.end(now)
        self._block_began[call] = now

    def ended(self, call: Call) -> None:
        """Ends a call's span."""
        self._block_began.pop(call, None)
        span = self._spans.pop(call, None)
        if span is None:
            return
        span.set_attributes(
            {
                **_attributes(call),
                "rpc.grpc.status_code": call.status.value[0],
                "packhorse.stream": call.id,
                "packhorse.num_messages": call.num_sent,
                "packhorse.sent_bytes": call.sent_bytes,
                "packhorse.flow_control_seconds": call.blocked_seconds,
            }
        )
        if call.status not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, call.message))
        span.end()

    def close(self) -> None:
        """Sends what is left, for CLOSE_SECONDS at most: a collector that does not answer keeps no process alive.

        The SDK's own limit does not hold while it tries again, so it is left alone with that in a thread.
        """
        flushing = threading.Thread(target=self._provider.force_flush, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(CLOSE_SECONDS)


def _attributes(call: Call) -> dict[str, Any]:
    return {f"packhorse.{name}": value for name, value in call.facts().items()}
