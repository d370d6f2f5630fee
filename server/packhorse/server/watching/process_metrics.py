"""How much this process uses of the machine, measured every few seconds, for the metrics and for GetActivity.

Leaves asking the kernel about connections to `connections`, and what the system says of the process to `base.machine`.
"""

import asyncio
import time

from packhorse.server.base.machine import Resources
from packhorse.server.base.output import STDERR
from packhorse.server.watching.connections import Connections
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb

_EVERY_SECONDS = 2.0
"""Time between two looks, at least."""

_MOST_SHARE = 0.01
"""The largest share of the time that looks may take: thousands of connections take tens of milliseconds."""


class ProcessMetrics:
    """Measures this process and its connections every few seconds, for the metrics and for GetActivity.

    Args:
        metrics: updated at every measurement.
        connections: the connections to this process.
    """

    def __init__(self, metrics: Metrics, connections: Connections) -> None:
        self._metrics = metrics
        self._connections = connections
        # What was measured last, and what the counters among the metrics hold by then:
        self._resources = Resources()
        self._bytes_without_request = 0
        self._num_left_out = 0

    async def keep_measuring(self) -> None:
        """Measures again and again, in a thread, until it is cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.to_thread(self.measure)
            await asyncio.sleep(max(_EVERY_SECONDS, (time.monotonic() - began) / _MOST_SHARE))

    def measure(self) -> None:
        """Measures once, and updates the metrics."""
        metrics, connections = self._metrics, self._connections
        connections.look()
        before, now = self._resources, Resources.now()
        num_left_out = STDERR.num_left_out  # lines of the log that could not be written
        metrics.processor_seconds.inc(now.processor_seconds - before.processor_seconds)
        metrics.memory.set(now.memory_bytes)
        metrics.memory_limit.set(now.memory_limit_bytes)
        metrics.open_files.set(now.open_files)
        metrics.open_files_limit.set(now.most_open_files)
        metrics.connections.set(connections.num_open)
        metrics.connections_without_request.set(connections.num_without_request)
        metrics.lines_left_out.inc(num_left_out - self._num_left_out)
        metrics.bytes_without_request.inc(connections.bytes_without_request - self._bytes_without_request)
        self._resources, self._bytes_without_request = now, connections.bytes_without_request
        self._num_left_out = num_left_out

    def activity(self) -> pb.ProcessActivity:
        """Returns what was measured last."""
        resources, connections = self._resources, self._connections
        return pb.ProcessActivity(
            processor_seconds=resources.processor_seconds,
            memory_bytes=resources.memory_bytes,
            memory_limit_bytes=resources.memory_limit_bytes,
            open_files=resources.open_files,
            most_open_files=resources.most_open_files,
            num_connections=connections.num_open,
            num_connections_without_request=connections.num_without_request,
            bytes_without_request=connections.bytes_without_request,
        )
