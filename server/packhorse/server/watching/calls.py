"""Every call of the server, with its log lines, metrics and traces.

Owns the record of a call (`Call`), and three watchers: one logs calls, one counts them, one makes traces. Leaves
showing calls to watchers to `interceptor`, and the list of open streams to `activity`. OpenTelemetry is imported only
if the server sends traces; its own variables (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and so on) apply.
"""

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from packhorse.formats import require
from packhorse.server.base.log_limit import Sparing
from packhorse.server.base.logs import fields
from packhorse.server.watching.metrics import STREAMS, Metrics
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)
_STREAMS_LOG = _LOG.getChild("streams")
_REFUSED_LOG = _STREAMS_LOG.getChild("refused")

MOST_LINES = {_STREAMS_LOG: 10_000, _REFUSED_LOG: 60}
"""Logger → most lines in a minute. Streams that open and end are logged even when the largest run starts; refusals are
few lines, because strangers can cause as many as they like."""

CLOSE_SECONDS = 2.0
"""How long sending the last spans may take: less than a process has after its grace period."""

SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"].full_name
"""Full name of our gRPC service."""

_TRACES_PATH = "/v1/traces"
"""Where a collector takes traces over HTTP."""

_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""The exporter's module, and so its logger."""


@dataclass(eq=False, slots=True)
class Call:
    """One call. Its times are of `time.perf_counter`."""

    method: str
    """Full name without a slash before it, e.g. packhorse.v1.PackingService/GetBins."""
    trace_parent: str = ""
    """The client's span, as W3C's header `traceparent` names it."""
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    """Name of the call in the log and on the status page."""
    began: float = field(default_factory=time.perf_counter)
    request: Message | None = None
    """First request; None before it came, and if it could not be decoded."""
    peer: str = ""
    """The client's address, as gRPC writes it."""
    holder: str = ""
    """Name of the call's token; empty if the server needs no tokens."""
    received_bytes: int = 0
    sent_bytes: int = 0
    num_sent: int = 0
    """Messages that were sent."""
    sending_since: float | None = None
    """Time at which the message that waits for its client was ready; None if none waits. After the call's end it is
    that of a message which was never sent."""
    blocked_seconds: float = 0.0
    """How long the messages that were sent waited for their client (flow control)."""
    ended: float | None = None
    status: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    """Message of the status; empty if it is OK."""

    @property
    def is_ours(self) -> bool:
        """Whether the call is of the packing service, not of health or reflection."""
        return self.method.startswith(f"{SERVICE}/")

    @property
    def is_stream(self) -> bool:
        """Whether the call is a StreamBins or a PackStream."""
        return self.is_ours and self.name in STREAMS

    @property
    def name(self) -> str:
        """The method's short name, e.g. GetBins."""
        return self.method.rpartition("/")[2]

    @property
    def seconds(self) -> float:
        """How long the call has been open, or was until its end."""
        return (self.ended or time.perf_counter()) - self.began

    def facts(self) -> dict[str, Any]:
        """Returns what the request asks for: dataset, epoch, rank, worker, step and so on, as far as it has these."""
        request = self.request
        facts: dict[str, Any] = {}
        if isinstance(request, pb.GetDatasetRequest):
            facts["dataset"] = request.name
        elif request is not None and "dataset" in request.DESCRIPTOR.fields_by_name:
            facts = {
                field: getattr(request, field)
                for field in ("dataset", "epoch", "from_position")
                if field in request.DESCRIPTOR.fields_by_name
            }
        if isinstance(request, pb.StreamBinsRequest):
            facts |= {"rank": request.rank, "worker": request.worker, "step": request.first_step}
        return facts


class Watcher:
    """An observer of calls. The interceptor calls its methods in the event loop; here they do nothing."""

    def began(self, call: Call) -> None:
        """Is called when a call comes in, before its request is here."""

    def sends(self, call: Call, message: Any) -> None:
        """Is called when a message of a stream is ready, before it waits for its client."""

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Is called when the message was sent, after it had waited for its client (flow control)."""

    def ended(self, call: Call) -> None:
        """Is called when the call is over."""


class CallLog(Watcher):
    """Logs the beginning and end of streams, refusals, and at debug every call."""

    def __init__(self) -> None:
        for logger, most_lines in MOST_LINES.items():
            if not logger.filters:
                logger.addFilter(Sparing(most_lines))

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Logs a new stream once its first block or answer was sent: logging before would delay that message."""
        if call.is_stream and call.num_sent == 1 + isinstance(message, pb.StreamBinsResponse):
            _STREAMS_LOG.info("stream opened", extra=fields(stream=call.id, **_who(call)))

    def ended(self, call: Call) -> None:
        """Logs the end of a stream, or a single call."""
        outcome = {"status": call.status.name, "seconds": round(call.seconds, 6), "why": call.message}
        if call.is_stream and call.num_sent:
            counts = {"blocks": call.num_sent - 1, "bytes": call.sent_bytes, "blocked": round(call.blocked_seconds, 3)}
            _STREAMS_LOG.info("stream ended", extra=fields(stream=call.id, **_who(call), **counts, **outcome))
        elif call.is_stream and call.status is grpc.StatusCode.OK:  # nobody refused it
            _REFUSED_LOG.info(
                "stream left before its first message", extra=fields(**_who(call), seconds=outcome["seconds"])
            )
        elif call.is_stream and call.status is not grpc.StatusCode.CANCELLED:
            _REFUSED_LOG.warning("stream refused", extra=fields(**_who(call), **outcome))
        elif _LOG.isEnabledFor(logging.DEBUG):
            counts = {"received_bytes": call.received_bytes, "sent_bytes": call.sent_bytes}
            _LOG.debug("call", extra=fields(**_who(call), **counts, **outcome))


def _who(call: Call) -> dict[str, Any]:
    """Returns a log line's fields that identify a call: method, what it asks for, client."""
    method = call.name if call.is_ours else call.method
    return {"method": method, **call.facts(), "peer": call.peer, "token_name": call.holder}


class CallMetrics(Watcher):
    """Counts and measures calls.

    Args:
        metrics: the server's metrics, some of which are updated here.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, call: Call) -> None:
        """Counts a call."""
        self._metrics.calls_started.labels(call.method).inc()

    def sends(self, call: Call, message: Any) -> None:
        """Counts a message that waits for its client."""
        if call.is_stream:
            self._metrics.blocked_streams.labels(call.name).inc()

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Counts the time that a stream's message waited, and with a stream's first message, a resumed stream."""
        if not call.is_stream:
            return
        self._metrics.blocked_streams.labels(call.name).dec()
        dataset = getattr(call.request, "dataset", "")
        self._metrics.blocked_seconds.labels(dataset).inc(waited_seconds)
        if call.num_sent == 1 and isinstance(call.request, pb.StreamBinsRequest) and call.request.first_step:
            self._metrics.resumed.labels(dataset).inc()

    def ended(self, call: Call) -> None:
        """Measures a call."""
        if call.is_stream and call.sending_since is not None:
            self._metrics.blocked_streams.labels(call.name).dec()
        labels = (call.method, call.status.name)
        self._metrics.call_seconds.labels(*labels).observe(call.seconds)
        self._metrics.sent_bytes.labels(*labels).observe(call.sent_bytes)
        self._metrics.received_bytes.labels(*labels).observe(call.received_bytes)


class Tracing(Watcher):
    """Makes a trace's span of each call, except those of health and reflection, and of each block.

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
        logging.getLogger(_EXPORTER_LOGGER).addFilter(Sparing())  # it logs every failed attempt to reach the collector
        self._api = require("opentelemetry.trace", "otel")
        self._parents = require("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()
        about = {"service.name": "packhorse", "service.version": version}
        self._provider = sdk.TracerProvider(resource=resources.Resource.create(about))
        url = endpoint if endpoint.endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
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
        """Makes a block's span: from the time when the message before it was sent until the block was sent."""
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
        """Sends the last spans, for CLOSE_SECONDS at most, even if the collector does not answer.

        The SDK's own time limit does not apply while it retries, so it does this in a thread that is not waited for.
        """
        flushing = threading.Thread(target=self._provider.force_flush, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(CLOSE_SECONDS)


def _attributes(call: Call) -> dict[str, Any]:
    """Returns what a call asks for as attributes of a span."""
    return {f"packhorse.{name}": value for name, value in call.facts().items()}
