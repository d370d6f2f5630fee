"""One replica of the service: the channel to it, the channel's options, and the calls over it.

Owns why a call to the replica failed, in the client's exceptions. Leaves the choice of a replica, and how long calls
may take, to `grpc_channels`; texts of gRPC's errors to `grpc_errors`; and certificates to `credentials`.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from packhorse.client.errors import AccessDeniedError, PackhorseError, ServerUnavailableError
from packhorse.client.transport._watchdog import NoMessageError
from packhorse.client.transport.addresses import Address, endpoint_of
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.client.transport.handshake import refusal_of
from packhorse.client.transport.methods import Method
from packhorse.storage import SharedSet

MAX_MESSAGE_BYTES = 65 << 20
"""The largest message that a client accepts."""
READ_AHEAD_BYTES = 64 << 10
"""A stream's flow-control window: bytes that may wait in the network unread, which is a thousand bins or more."""
AVOID_SECONDS = 10.0
"""Time during which a replica that failed is asked after all others."""
PING_SECONDS = 8
"""Time between pings on a quiet connection. A lost server is noticed within 15 seconds: 5 of them wait for the pong."""
FEW_PINGS_SECONDS = 330
"""The same for a replica in _FEW_PINGS: gRPC's servers and proxies allow one ping in 5 minutes by default."""

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream's client has nothing to send for hours
    # Connecting times out after 4 s instead of 20 s: a busy server may never have seen the attempt.
    ("grpc.min_reconnect_backoff_ms", 4_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # No probing: the window would grow to megabytes, which are hours of bins, sent before a new stage or takedown.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", READ_AHEAD_BYTES),
)

_TOO_MANY_PINGS = "too many pings"
"""How gRPC's text begins, in small letters, if the other side ended a connection because of its pings."""

_FEW_PINGS = SharedSet()
"""Replicas that ended a connection because of its pings, e.g. because a proxy with gRPC's defaults is on the way."""


class Replica:
    """One address of the service, the channel to it, and when it last failed.

    Args:
        address: where the replica listens.
        credentials: what a channel needs.
    """

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.name = address.target
        self.failed_at = -math.inf  # by the monotonic clock, as `grpc_channels` records it
        self.is_closed = False
        self.has_answered = False  # as `grpc_channels` records it
        self._address = address
        self._credentials = credentials
        self._handshake_at = -math.inf  # when `refusal` last tried a handshake
        self._channel: grpc.Channel | None = None
        # (kind, method) → the channel's callable, the stub: making one takes as long as calling it.
        self._stubs: dict[tuple[str, str], Any] = {}

    def call(self, method: Method[Any, Any], request: Any, **options: Any) -> Any:
        """Calls a method of the service over the channel."""
        return self._stub("unary_unary", method, method.parse)(request, **options)

    def stream(self, method: Method[Any, Any], request: Any, **options: Any) -> Any:
        """Opens a stream of undecoded bytes: gRPC would decode them in the one thread that serves all calls."""
        kind = "stream_stream" if isinstance(request, Iterator) else "unary_stream"
        return self._stub(kind, method, bytes)(request, **options)

    def _stub(self, kind: str, method: Method[Any, Any], parse: Callable[[bytes], Any]) -> Any:
        """Returns what calls a method over the channel; opens the channel if there is none.

        Args:
            kind: `unary_unary`, `unary_stream` or `stream_stream`: a method of gRPC's Channel.
            method: the service's method.
            parse: turns the bytes of an answer into what the call returns.
        """
        if self._channel is None:
            seconds = FEW_PINGS_SECONDS if self.name in _FEW_PINGS else PING_SECONDS
            options = (*_OPTIONS, ("grpc.keepalive_time_ms", 1000 * seconds))
            self._channel = self._credentials.open_channel(self._address, options)
            self._stubs = {}
        stub = self._stubs.get((kind, method.name))
        if stub is None:
            stub = getattr(self._channel, kind)(
                method.path, request_serializer=_serialized, response_deserializer=parse
            )
            self._stubs[kind, method.name] = stub
        return stub

    def renew(self) -> None:
        """Lets the next call open another channel; calls on the old channel continue.

        After altered bytes a connection stays damaged, because HTTP/2's headers refer to earlier headers.
        """
        self._channel = None

    def refusal(self) -> AccessDeniedError | None:
        """Returns why no connection opens, if TLS is the cause; else None. At most one handshake in AVOID_SECONDS."""
        if self._credentials.are_of_grpc:  # their certificates cannot be read
            return None
        endpoint = endpoint_of(self._address)
        if endpoint is None:  # e.g. a unix socket
            return None
        uses_tls = self._credentials.uses_tls
        if self.has_answered and not uses_tls:  # plain text was right
            return None
        now = time.monotonic()
        if now - self._handshake_at < AVOID_SECONDS:
            return None
        self._handshake_at = now
        return refusal_of(endpoint, self._credentials.access, uses_tls=uses_tls)

    def failure(self, error: grpc.RpcError | NoMessageError) -> PackhorseError:
        """Returns the client's exception for an error of a call; it names the proxy, if there is one."""
        proxy = self._address.proxy
        if isinstance(error, NoMessageError):
            text = f"{self.name}: {error}"
            return ServerUnavailableError(text) if proxy is None else proxy.failure(self.name, text)
        if isinstance(error, grpc.Call) and (error.details() or "").lower().startswith(_TOO_MANY_PINGS):
            _FEW_PINGS.add(self.name)  # for the next channel
        return exception_of(error, self.name, proxy)

    def close(self) -> None:
        """Closes the channel; calls that are waiting fail."""
        self.is_closed = True
        if self._channel is not None:
            self._channel.close()


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
