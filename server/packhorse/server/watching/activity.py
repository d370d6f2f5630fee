"""What this process does now: its streams, and the work that waits.

Owns GetActivity's answer and the metric of ranks that lag. Leaves the calls themselves to `calls`, and the process's
part of the status page to `own_status`.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.metrics import Metrics, values_of
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import steps_of_ranks

FRESH_SECONDS = 0.25
"""Age up to which an answer is given again, because many clients may ask at once."""

_LAG_EVERY_SECONDS = 1.0


class Activity(Watcher):
    """Follows open streams. Used from one event loop only.

    Args:
        metrics: read for the lanes and for what was streamed; `rank_lag` is set here.
        version: of this packhorse.
        max_streams: the limit of open streams.
        num_processes: how many processes listen at the same address.
        process_activity: returns what this process uses of its machine.
    """

    def __init__(
        self,
        metrics: Metrics,
        version: str,
        max_streams: int,
        num_processes: int = 1,
        process_activity: Callable[[], pb.ProcessActivity] = pb.ProcessActivity,
    ) -> None:
        self._metrics = metrics
        self._process_activity = process_activity
        self._constant_fields: dict[str, Any] = {
            "server_version": version,
            "process": secrets.randbits(63),
            "num_processes": num_processes,
            "max_streams": max_streams,
        }
        self._began = time.perf_counter()
        self._streams: dict[Call, pb.StreamActivity] = {}
        self._first_steps: dict[str, int] = {}  # stream's id → first step of the block that was sent last
        self._answer = pb.GetActivityResponse()
        self._answered_at = float("-inf")
        self._lag_at = float("-inf")

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Notes how far a stream has come. A stream is listed once its first message was sent."""
        if not call.is_stream:
            return
        stream = self._streams.get(call)
        if stream is None:
            stream = self._streams[call] = _stream_of(call)
        if isinstance(message, pb.StreamBinsResponse):
            if message.HasField("header"):
                stream.num_steps, stream.digest = message.header.num_steps, message.header.digest
            else:
                block = message.block
                stream.next_step = block.first_step + block.num_steps * _step_stride(call.request)
                self._first_steps[stream.id] = block.first_step
        self._measure_lag()

    def ended(self, call: Call) -> None:
        """Forgets a stream."""
        if self._streams.pop(call, None) is not None:
            self._first_steps.pop(call.id, None)
            self._measure_lag()

    def answer(self) -> pb.GetActivityResponse:
        """Returns the answer for a client that may know everything. The caller must not change it."""
        now = time.perf_counter()
        if now - self._answered_at > FRESH_SECONDS:
            self._answered_at = now
            self._answer = pb.GetActivityResponse(
                uptime_seconds=now - self._began,
                streams=[_updated(call, stream, now) for call, stream in self._streams.items()],
                lanes=[
                    pb.LaneActivity(name=lane, num_waiting=int(waiting))
                    for (lane,), waiting in values_of(self._metrics.lane_waiting).items()
                ],
                datasets=self._datasets(),
                process_activity=self._process_activity(),
                **self._constant_fields,
            )
        return self._answer

    def _datasets(self) -> list[pb.DatasetActivity]:
        """Returns what was streamed of each dataset since this process began."""
        bins, sequences, tokens = (
            values_of(metric) for metric in (self._metrics.bins, self._metrics.sequences, self._metrics.tokens)
        )
        return [
            pb.DatasetActivity(
                name=name,
                num_bins=int(num_bins),
                num_sequences=int(sequences.get((name,), 0)),
                num_tokens=int(tokens.get((name,), 0)),
            )
            for (name,), num_bins in sorted(bins.items())
        ]

    def _measure_lag(self) -> None:
        """Sets `rank_lag`, at most once a second while streams are open, because it looks at every stream.

        A run's lag is the first step of the last block sent to the furthest rank, minus the next step of the slowest
        rank. The furthest rank's last block does not count, because ranks at the same step differ by a block if one has
        asked for its next block and the other has not yet.
        """
        now = time.perf_counter()
        if now - self._lag_at < _LAG_EVERY_SECONDS and self._streams:
            return
        self._lag_at = now
        lags = dict.fromkeys((dataset for (dataset,) in values_of(self._metrics.rank_lag)), 0)
        streams = self._streams.values()
        begun_steps = steps_of_ranks(streams, lambda stream: self._first_steps.get(stream.id, stream.first_step))
        for run, next_steps in steps_of_ranks(streams).items():
            lag = max(begun_steps[run].values()) - min(next_steps.values())
            lags[run.dataset] = max(lags.get(run.dataset, 0), lag)
        for dataset, lag in lags.items():
            self._metrics.rank_lag.labels(dataset).set(lag)


def _stream_of(call: Call) -> pb.StreamActivity:
    stream = pb.StreamActivity(id=call.id, method=call.name, peer=call.peer)
    request = call.request
    if isinstance(request, pb.StreamBinsRequest):
        for name in ("dataset", "epoch", "seed", "rank", "worker", "first_step"):
            setattr(stream, name, getattr(request, name))
        stream.world_size, stream.batch_size = request.topology.world_size, request.topology.batch_size
        stream.next_step = request.first_step
    return stream


def _step_stride(request: Any) -> int:
    """Returns how far apart the steps of a StreamBins are, as `Topology.step_stride` for its message."""
    topology = request.topology
    return 1 if topology.mode == pb.STREAM_MODE_INDEPENDENT else int(topology.workers_per_rank)


def _updated(call: Call, stream: pb.StreamActivity, now: float) -> pb.StreamActivity:
    """Returns a stream with its times brought up to date."""
    stream.num_messages, stream.sent_bytes, stream.open_seconds = call.num_sent, call.sent_bytes, now - call.began
    stream.blocked_seconds = call.blocked_seconds
    stream.waiting_seconds = 0.0 if call.sending_since is None else max(0.0, now - call.sending_since)
    return stream
