"""The metrics that follow calls: gRPC's own, as gRFC A66 names them, and what streams wait for.

Owns when they move; leaves their names and meanings to `metrics`.
"""

from typing import Any

from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb


class CallMetrics(Watcher):
    """Counts and measures calls.

    Args:
        metrics: move with them.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, call: Call) -> None:
        """Counts a call."""
        self._metrics.calls_started.labels(call.method).inc()

    def sends(self, call: Call, message: Any) -> None:
        """Counts a message that waits for its receiver."""
        if call.is_stream:
            self._metrics.blocked_streams.inc()

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Counts the time that it waited; with a stream's first, that the stream goes on where another broke."""
        if not call.is_stream:
            return
        self._metrics.blocked_streams.dec()
        dataset = getattr(call.request, "dataset", "")
        self._metrics.blocked_seconds.labels(dataset).inc(waited_seconds)
        if call.num_sent == 1 and isinstance(call.request, pb.StreamBinsRequest) and call.request.first_step:
            self._metrics.resumed.labels(dataset).inc()

    def ended(self, call: Call) -> None:
        """Measures a call."""
        if call.is_stream and call.sending_since is not None:
            self._metrics.blocked_streams.dec()
        labels = (call.method, call.status.name)
        self._metrics.call_seconds.labels(*labels).observe(call.seconds)
        self._metrics.sent_bytes.labels(*labels).observe(call.sent_bytes)
        self._metrics.received_bytes.labels(*labels).observe(call.received_bytes)
