"""Traces of calls: a span of each call, and of each block of a stream.

Leaves the record of a call to `calls`. OpenTelemetry is imported only if the server sends traces; its own variables
(OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and so on) apply.
"""

import logging
import threading
import time
from typing import Any

import grpc

from packhorse.formats import require
from packhorse.server.base.log_limit import LineLimit
from packhorse.server.watching.calls import Call, Watcher
from packhorse.v1 import packing_pb2 as pb

CLOSE_SECONDS = 2.0
"""How long sending the last spans may take: less than a process has after its grace period."""

_TRACES_PATH = "/v1/traces"
"""Where a collector takes traces over HTTP."""

_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""The exporter's module, and so its logger."""


class Tracing(Watcher):
    """Makes a span of each call, except those of health and reflection, and of each block of a stream.

    If the call has the header `traceparent`, the client's span is the parent of the call's span.

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
        # The exporter logs every failed attempt to reach the collector.
        logging.getLogger(_EXPORTER_LOGGER).addFilter(LineLimit())
        self._api = require("opentelemetry.trace", "otel")
        self._parents = require("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()
        about = {"service.name": "packhorse", "service.version": version}
        self._provider = sdk.TracerProvider(resource=resources.Resource.create(about))
        url = endpoint if endpoint.endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("packhorse", version)
        self._spans: dict[Call, Any] = {}
        self._last_sent_ns: dict[Call, int] = {}

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
        """Makes a block's span: from the time when the message before it was sent until the block was sent."""
        span = self._spans.get(call)
        if span is None or not isinstance(message, pb.StreamBinsResponse):
            return
        now = time.time_ns()
        if message.HasField("block"):
            block = self._tracer.start_span(
                "block",
                context=self._api.set_span_in_context(span),
                start_time=self._last_sent_ns[call],  # is there, because a stream's header comes before its blocks
                attributes={
                    **_attributes(call),
                    "packhorse.step": message.block.first_step,
                    "packhorse.num_steps": message.block.num_steps,
                    "packhorse.flow_control_seconds": waited_seconds,
                },
            )
            block.end(now)
        self._last_sent_ns[call] = now

    def ended(self, call: Call) -> None:
        """Ends a call's span."""
        self._last_sent_ns.pop(call, None)
        span = self._spans.pop(call, None)
        if span is None:
            return
        code, _ = call.status.value
        span.set_attributes(
            {
                **_attributes(call),
                "rpc.grpc.status_code": code,
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
        """Sends the last spans, for CLOSE_SECONDS at most, even if the collector does not answer.

        The SDK's own time limit does not apply while it retries, so it does this in a thread that is not waited for.
        """
        flushing = threading.Thread(target=self._provider.force_flush, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(CLOSE_SECONDS)


def _attributes(call: Call) -> dict[str, Any]:
    return {f"packhorse.{name}": value for name, value in call.facts().items()}
