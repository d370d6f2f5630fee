"""The log of calls: streams that open and end, refusals, and at debug all remaining calls.

Leaves the record of a call to `calls`, and its metrics to `call_metrics`.
"""

import logging
from typing import Any

import grpc

from packhorse.server.base.log_limit import LineLimit
from packhorse.server.base.logs import fields
from packhorse.server.watching.calls import Call, Watcher
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger("packhorse.server.watching.calls")  # users filter the log by this name
_STREAMS_LOG = _LOG.getChild("streams")
_REFUSED_LOG = _STREAMS_LOG.getChild("refused")

MOST_LINES = {_STREAMS_LOG: 10_000, _REFUSED_LOG: 60}
"""Logger → most lines in a minute. Streams that open and end are logged even when the largest run starts; refusals are
few lines, because strangers can cause as many as they like."""


class CallLog(Watcher):
    """Logs the beginning and end of streams, refusals, and at debug all remaining calls."""

    def __init__(self) -> None:
        for logger, most_lines in MOST_LINES.items():
            if not logger.filters:  # the servers of one process share the loggers
                logger.addFilter(LineLimit(most_lines))

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Logs a new stream once its first block or answer was sent: logging before would delay that message."""
        num_headers = 1 if isinstance(message, pb.StreamBinsResponse) else 0  # a PackStream has none
        if call.is_stream and call.num_sent == num_headers + 1:
            _STREAMS_LOG.info("stream opened", extra=fields(stream=call.id, **_identity(call)))

    def ended(self, call: Call) -> None:
        """Logs the end of a stream, or a single call."""
        outcome = {"status": call.status.name, "seconds": round(call.seconds, 6), "why": call.message}
        if call.is_stream and call.num_sent:
            # The first message is no block: it is the header of a StreamBins, or answers the options of a PackStream.
            counts = {"blocks": call.num_sent - 1, "bytes": call.sent_bytes, "blocked": round(call.blocked_seconds, 3)}
            _STREAMS_LOG.info("stream ended", extra=fields(stream=call.id, **_identity(call), **counts, **outcome))
        elif call.is_stream and call.status is grpc.StatusCode.OK:  # nobody refused it: the client sent no request
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
