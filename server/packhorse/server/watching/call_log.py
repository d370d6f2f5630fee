"""What the log says of calls: streams that open, end or are refused, and at level debug every single call.

Owns these lines and their fields. A line never holds a token, metadata or a request: what a call asked for is named by
the fields of `Call.facts`.
"""

import logging
from typing import Any

import grpc

from packhorse.server.base.logs import Sparing, fields
from packhorse.server.watching.calls import Call, Watcher
from packhorse.v1 import packing_pb2 as pb

_CALLS = logging.getLogger(__name__)
_STREAMS = _CALLS.getChild("streams")
_REFUSED = _STREAMS.getChild("refused")

MOST_LINES = {_STREAMS: 10_000, _REFUSED: 60}
"""In a minute. Streams that open and end are logged for the largest run that starts; strangers may be refused as often
as they like."""


class CallLog(Watcher):
    """Logs calls."""

    def __init__(self) -> None:
        for logger, most_lines in MOST_LINES.items():
            if not logger.filters:
                logger.addFilter(Sparing(most_lines))

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Logs a stream once its first block or answer has left; before, a line would keep that waiting."""
        if call.is_stream and call.num_sent == 1 + isinstance(message, pb.StreamBinsResponse):
            _STREAMS.info("stream opened", extra=fields(stream=call.id, **_who(call)))

    def ended(self, call: Call) -> None:
        """Logs the end of a stream, or a single call."""
        outcome = {"status": call.status.name, "seconds": round(call.seconds, 6), "why": call.message}
        if call.is_stream and call.num_sent:
            counts = {"blocks": call.num_sent - 1, "bytes": call.sent_bytes, "blocked": round(call.blocked_seconds, 3)}
            _STREAMS.info("stream ended", extra=fields(stream=call.id, **_who(call), **counts, **outcome))
        elif call.is_stream and call.status is grpc.StatusCode.OK:  # nobody refused it
            _REFUSED.info(
                "stream left before its first message", extra=fields(**_who(call), seconds=outcome["seconds"])
            )
        elif call.is_stream and call.status is not grpc.StatusCode.CANCELLED:
            _REFUSED.warning("stream refused", extra=fields(**_who(call), **outcome))
        elif _CALLS.isEnabledFor(logging.DEBUG):
            counts = {"received_bytes": call.received_bytes, "sent_bytes": call.sent_bytes}
            _CALLS.debug("call", extra=fields(**_who(call), **counts, **outcome))


def _who(call: Call) -> dict[str, Any]:
    method = call.name if call.is_ours else call.method
    return {"method": method, **call.facts(), "peer": call.peer, "token_name": call.holder}
