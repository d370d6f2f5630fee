"""A call of the server, from its beginning to its end, and the base class of what watches calls.

Owns the record of a call (`Call`) and the steps that a `Watcher` sees. Leaves showing them to `followed_call`, the log
of calls to `call_log`, their metrics to `call_metrics` and traces to `tracing`, and the list of open streams to
`activity`.
"""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from packhorse.server.watching.metrics import STREAMS
from packhorse.v1 import packing_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"].full_name
"""Full name of our gRPC service."""


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
    """Time at which the message that waits for its client was ready; None if none waits. If it is set after
    the call's end, that message was never sent."""
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
                name: getattr(request, name)
                for name in ("dataset", "epoch", "from_position")
                if name in request.DESCRIPTOR.fields_by_name
            }
        if isinstance(request, pb.StreamBinsRequest):
            facts |= {"rank": request.rank, "worker": request.worker, "step": request.first_step}
        return facts


class Watcher:
    """An observer of calls. `AllCalls.show` calls its methods by name, in the event loop. Here they do nothing."""

    def began(self, call: Call) -> None:
        """Is called when a call comes in, before its request is here."""

    def waits(self, call: Call, message: Any) -> None:
        """Is called when a message of a stream is ready, before it waits for its client."""

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Is called when that message was sent, after it had waited for its client (flow control)."""

    def ended(self, call: Call) -> None:
        """Is called when the call is over."""
