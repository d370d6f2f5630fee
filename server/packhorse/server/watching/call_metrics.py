"""The metrics of calls: how many, how long, how large, and which wait for their clients.

Leaves the record of a call to `calls`, and the names and meanings of metrics to `metrics`.
"""

from typing import Any

from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb


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
        """Counts the time that a stream's message waited; at the first, counts a stream that begins after step 0."""
        if not call.is_stream:
            return
        self._metrics.blocked_streams.labels(call.name).dec()
        dataset = getattr(call.request, "dataset", "")
        self._metrics.blocked_seconds.labels(dataset).inc(waited_seconds)
        if call.num_sent == 1 and isinstance(call.request, pb.StreamBinsRequest) and call.request.first_step:
            self._metrics.resumed.labels(dataset).inc()

    def ended(self, call: Call) -> None:
        """Measures a call."""
        if call.is_stream and call.sending_since is not None:  # its last message waited, and `sent` was not called
            self._metrics.blocked_streams.labels(call.name).dec()
        labels = (call.method, call.status.name)
        self._metrics.call_seconds.labels(*labels).observe(call.seconds)
        self._metrics.sent_bytes.labels(*labels).observe(call.sent_bytes)
        self._metrics.received_bytes.labels(*labels).observe(call.received_bytes)
