"""The log and the metrics of calls, each a watcher of every call.

Leaves the record of a call to `calls`, traces to `tracing`, and the names and meanings of metrics to `metrics`.
"""

import logging
from typing import Any

import grpc

from packhorse.server.base.log_limit import LineLimit
from packhorse.server.base.logs import fields
from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger("packhorse.server.watching.calls")  # users filter the log by this name
_STREAMS_LOG = _LOG.getChild("streams")
_REFUSED_LOG = _STREAMS_LOG.getChild("refused")

MOST_LINES = {_STREAMS_LOG: 10_000, _REFUSED_LOG: 60}
"""Logger → most lines in a minute. Streams that open and end are logged even when the largest run starts; refusals are
few lines, because strangers can cause as many as they like."""


class CallLog(Watcher):
    """Logs the beginning and end of streams, refusals, and at debug every call."""

    def __init__(self) -> None:
        for logger, most_lines in MOST_LINES.items():
            if not logger.filters:
                logger.addFilter(LineLimit(most_lines))

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Logs a new stream once its first block or answer was sent: logging before would delay that message."""
        num_headers = 1 if isinstance(message, pb.StreamBinsResponse) else 0
        if call.is_stream and call.num_sent == num_headers + 1:
            _STREAMS_LOG.info("stream opened", extra=fields(stream=call.id, **_identity(call)))

    def ended(self, call: Call) -> None:
        """Logs the end of a stream, or a single call."""
        outcome = {"status": call.status.name, "seconds": round(call.seconds, 6), "why": call.message}
        if call.is_stream and call.num_sent:
            counts = {"blocks": call.num_sent - 1, "bytes": call.sent_bytes, "blocked": round(call.blocked_seconds, 3)}
            _STREAMS_LOG.info("stream ended", extra=fields(stream=call.id, **_identity(call), **counts, **outcome))
        elif call.is_stream and call.status is grpc.StatusCode.OK:  # nobody refused it
            _REFUSED_LOG.info(
                "stream left before its first message", extra=fields(**_identity(call), seconds=outcome["seconds"])
            )
        elif call.is_stream and call.status is not grpc.StatusCode.CANCELLED:
            _REFUSED_LOG.warning("stream refused", extra=fields(**_identity(call), **outcome))
        elif _LOG.isEnabledFor(logging.DEBUG):
            counts = {"received_bytes": call.received_bytes, "sent_bytes": call.sent_bytes}
            _LOG.debug("call", extra=fields(**_identity(call), **counts, **outcome))


def _identity(call: Call) -> dict[str, Any]:
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

    def waits(self, call: Call, message: Any) -> None:
        """Counts a message that waits for its client."""
        if call.is_stream:
            self._metrics.blocked_streams.labels(call.name).inc()

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Counts the time that a stream's message waited; at its first message, counts a resumed stream."""
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
