"""The transport to servers: gRPC channels to the replicas of the service.

Owns the channels, their options and the choice of a replica; a call that fails at one replica is tried at the others,
once. Leaves what a target means to `transport.addresses`, certificates and tokens to `transport.access`, what an error
means to `transport.grpc_errors`, later attempts to `transport.retries`, and resuming to `streams/stream`.
"""

import atexit
import math
import os
import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar
from weakref import WeakSet

import grpc
from google.protobuf.message import DecodeError

from packhorse.client.errors import (
    AccessDeniedError,
    DamagedAnswerError,
    DatasetCorruptError,
    DatasetNotFoundError,
    DigestMismatchError,
    NotImplementedByServerError,
    PackhorseError,
    ServerUnavailableError,
    TransientError,
    VersionMismatchError,
)
from packhorse.client.transport._watchdog import NoMessageError, next_message
from packhorse.client.transport.access import NO_ACCESS, Access, Credentials
from packhorse.client.transport.addresses import Address, addresses_of, endpoint_of, hosts_of
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.client.transport.handshake import refusal_of
from packhorse.client.transport.methods import PACK_SEQUENCES, Method, no_deadline
from packhorse.client.transport.retries import SHORTEST_ATTEMPT_SECONDS
from packhorse.storage import SharedSet
from packhorse.wire import keep_freed_memory

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Answer = TypeVar("_Answer")

MAX_MESSAGE_BYTES = 65 << 20
"""The largest message that a client accepts."""
ANSWER_SECONDS = 30.0
"""The most time for one replica to answer a request, or to send a stream's first message."""
PACK_SECONDS = 120.0
"""The same for PackSequences and a PackStream's messages: a million distinct lengths take half a minute."""
STALL_SECONDS = 60.0
"""The most time for the next block of an open stream. A healthy server makes a block within 10 seconds."""
READ_AHEAD_BYTES = 64 << 10
"""A stream's flow-control window: bytes that may wait in the network unread, which is a thousand bins or more."""
AVOID_SECONDS = 10.0
"""Time during which a replica that failed is asked after all others."""
MOST_CONNECTIONS = 16
"""Connections to try at one address if it has another version of a dataset: several server processes may share the
address, and some may have started after the dataset's folder was replaced, while others still serve the old version."""
_LEAST_SECONDS = 0.1
"""The least time to ask a replica, however close the deadline."""

PING_SECONDS = 8
"""Time between pings on a quiet connection. A lost server is noticed within 15 seconds: 5 of them wait for the pong."""
FEW_PINGS_SECONDS = 330
"""The same for a replica that refused so many pings: gRPC's servers and proxies allow one in 5 minutes by default."""

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
"""The beginning of gRPC's text, in small letters, if the other side ended a connection because of its pings."""

_PERHAPS_ELSEWHERE = (
    AccessDeniedError,
    DatasetCorruptError,
    DatasetNotFoundError,
    DigestMismatchError,
    NotImplementedByServerError,
    VersionMismatchError,
)
"""Refusals of one replica that another may not share."""

_ANCHORS: list[grpc.Channel] = []
"""One idle channel, kept for the life of the process. Without it gRPC's engine stops with the last channel, and if the
process forks meanwhile (a DataLoader, right after `len(dataset)`), calls in the children never return."""

_ANSWERED = SharedSet()
"""Targets that have ever answered this process or one of its forks. Workers begin each epoch with new connections, and
should wait longer for a server that restarts than for one that was never there."""

_TRANSPORTS: "WeakSet[GrpcTransport]" = WeakSet()
"""The transports of this process, which `_end_calls` closes at its end."""

_FEW_PINGS = SharedSet()
"""Replicas that ended a connection because of its pings, e.g. because a proxy with gRPC's defaults is on the way."""

_RANDOM = random.SystemRandom()  # the global generator has the same seed on all ranks, which would choose one replica


@atexit.register
def _end_calls() -> None:
    """Closes streams that are open when the process ends; later gRPC could not end them, and would write to stderr."""
    for transport in list(_TRANSPORTS):
        transport.close()


def has_used_grpc() -> bool:
    """Whether this process, or one that it was forked from, has opened a channel; its forks may then stall."""
    return bool(_ANCHORS)


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class _Replica:
    """One address of the service, the channel to it, and when it last failed."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.name = address.target
        self.failed_at = -math.inf
        self.is_closed = False
        self.has_answered = False
        self._address = address
        self._credentials = credentials
        self._looked_at = -math.inf
        self._channel: grpc.Channel | None = None
        # (kind, method) → the channel's callable: making one takes as long as calling it.
        self._callables: dict[tuple[str, str], Any] = {}

    def call(self, method: Method[Any, Any], request: Any, **options: Any) -> Any:
        """Calls a method of the service over the channel."""
        return self._callable("unary_unary", method, method.parse)(request, **options)

    def stream(self, method: Method[Any, Any], request: Any, **options: Any) -> Any:
        """Opens a stream of undecoded bytes: gRPC would decode them in the one thread that serves all calls."""
        kind = "stream_stream" if isinstance(request, Iterator) else "unary_stream"
        return self._callable(kind, method, bytes)(request, **options)

    def _callable(self, kind: str, method: Method[Any, Any], parse: Callable[[bytes], Any]) -> Any:
        """Returns the channel's callable for a method; opens the channel if there is none.

        Args:
            kind: `unary_unary`, `unary_stream` or `stream_stream`: a method of gRPC's Channel.
            method: the service's method.
            parse: turns the bytes of an answer into what the callable returns.
        """
        if self._channel is None:
            seconds = FEW_PINGS_SECONDS if self.name in _FEW_PINGS else PING_SECONDS
            options = (*_OPTIONS, ("grpc.keepalive_time_ms", 1000 * seconds))
            self._channel = self._credentials.open_channel(self._address, options)
            self._callables = {}
        found = self._callables.get((kind, method.name))
        if found is None:
            found = getattr(self._channel, kind)(
                method.path, request_serializer=_serialized, response_deserializer=parse
            )
            self._callables[kind, method.name] = found
        return found

    def renew(self) -> None:
        """Lets the next call open another channel; calls on the old channel continue.

        After altered bytes a connection stays damaged, because HTTP/2's headers refer to earlier headers.
        """
        self._channel = None

    def refusal(self) -> AccessDeniedError | None:
        """Returns why no connection opens, if TLS is the cause; else None. Looks at most once in AVOID_SECONDS."""
        if self._credentials.has_credentials:  # gRPC's own, whose certificates cannot be read
            return None
        uses_tls, endpoint, now = self._credentials.uses_tls, endpoint_of(self._address), time.monotonic()
        if endpoint is None or now - self._looked_at < AVOID_SECONDS or (self.has_answered and not uses_tls):
            return None
        self._looked_at = now
        return refusal_of(endpoint, self._credentials.access, uses_tls=uses_tls)

    def failure(self, error: grpc.RpcError | NoMessageError) -> PackhorseError:
        """Returns the client's exception for an error of a call; it names the proxy, if there is one."""
        proxy = self._address.proxy
        if isinstance(error, grpc.RpcError):
            if isinstance(error, grpc.Call) and (error.details() or "").lower().startswith(_TOO_MANY_PINGS):
                _FEW_PINGS.add(self.name)
            return exception_of(error, self.name, proxy)
        text = f"{self.name}: {error}"
        return ServerUnavailableError(text) if proxy is None else proxy.failure(self.name, text)

    def close(self) -> None:
        """Closes the channel; calls that are waiting fail."""
        self.is_closed = True
        if self._channel is not None:
            self._channel.close()


class GrpcTransport:
    """Calls a service over gRPC. Each process opens its own channels at its first call, so a transport survives a fork.

    A call goes to a random replica that has not failed in the last AVOID_SECONDS. If it cannot answer, or lacks the
    dataset, the others are asked before the call fails.

    Args:
        target: host:port, host:port,host:port, dns:///host:port, unix:PATH.
        access: certificates and tokens; the environment gives what it leaves out.
        credentials: gRPC's credentials of a secure channel, instead of certificates.

    Raises:
        ValueError: a token would travel in plain text, or a file cannot be read.
        InvalidRequestError: the target is no address.
    """

    def __init__(
        self, target: str, *, access: Access = NO_ACCESS, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self.target = target
        self._hosts = hosts_of(target)
        given = access if credentials is not None else access.or_environment()
        self._credentials = Credentials(given, self._hosts, credentials)
        self._replicas: dict[Address, _Replica] = {}
        self._is_looked_up = False  # whether the hosts' names were looked up since the last failure
        self._calls: set[Any] = set()  # gRPC's calls of open streams
        self._pid = -1  # the process that the replicas and calls belong to
        _TRANSPORTS.add(self)

    @property
    def has_answered(self) -> bool:
        """Whether this target has ever answered this process or one of its forks."""
        return self.target in _ANSWERED

    def answer(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> _Response:
        """Returns the one answer to a request."""

        def ask(replica: _Replica, seconds: float) -> _Response:
            """Asks one replica, and raises the client's exception if it fails."""
            try:
                answer: _Response | None = replica.call(
                    method, request, timeout=seconds, metadata=self._credentials.metadata
                )
                if answer is None:  # gRPC takes status OK for an answer, even without a message
                    raise NoMessageError("an answer without a message")
            except (grpc.RpcError, NoMessageError) as error:
                raise self._recorded_failure(replica, error) from None
            return answer

        return self._first_answer(ask, timeout_seconds, PACK_SECONDS if method is PACK_SEQUENCES else ANSWER_SECONDS)

    def stream(
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = no_deadline
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests; closing this iterator ends the call.

        An iterator of requests can be read only once, so only one replica is asked.
        """
        is_iterator = isinstance(request, Iterator)

        def next_seconds() -> float:
            return min(
                PACK_SECONDS if is_iterator else STALL_SECONDS, max(seconds_left() / 2, SHORTEST_ATTEMPT_SECONDS)
            )

        def open_stream(replica: _Replica, seconds: float) -> tuple[_Response | None, Generator[_Response]]:
            call = replica.stream(method, request, metadata=self._credentials.metadata)
            messages = self._messages(replica, call, method.parse, seconds, next_seconds)
            return next(messages, None), messages

        first_message, messages = self._first_answer(
            open_stream, seconds_left(), ANSWER_SECONDS, most_replicas=1 if is_iterator else None
        )
        with closing(messages):
            if first_message is not None:
                yield first_message
                yield from messages

    def close(self) -> None:
        """Closes the channels; later calls open others."""
        if self._pid == os.getpid():
            for replica in self._replicas.values():
                replica.close()
            for call in list(self._calls):  # some may be on channels that have been renewed
                call.cancel()
            self._calls.clear()
        self._replicas, self._is_looked_up = {}, False

    def _first_answer(
        self,
        ask: Callable[[_Replica, float], _Answer],
        timeout_seconds: float,
        most_seconds: float,
        *,
        most_replicas: int | None = None,
    ) -> _Answer:
        """Asks one replica after the other, and returns the first answer.

        Args:
            ask: function that asks a replica, within the seconds that are its second argument.
            timeout_seconds: the time for all replicas together, which they share equally.
            most_seconds: the most time for one replica.
            most_replicas: the most replicas to ask; None for all.

        Raises:
            TransientError: no replica answered, and at least one failed in a way that may pass.
            PackhorseError: every replica refuses, or one refuses in a way that the others would too.
        """
        end = time.monotonic() + timeout_seconds
        refusal: PackhorseError | None = None
        trouble: TransientError | None = None
        replicas = self._replicas_in_order()[:most_replicas]
        for number, replica in enumerate(replicas):
            share = max(end - time.monotonic(), _LEAST_SECONDS) / (len(replicas) - number)
            try:
                answer = self._ask_until_same_version(ask, replica, min(share, most_seconds))
            except PackhorseError as failure:
                if isinstance(failure, TransientError):
                    trouble = failure
                elif isinstance(failure, _PERHAPS_ELSEWHERE):
                    refusal = refusal or failure
                else:
                    raise
            else:
                self._record_answer(replica)
                return answer
        if trouble is None:
            assert refusal is not None
            raise refusal
        if refusal is not None:
            trouble.args = (f"{trouble}; another replica: {refusal}",)
        raise trouble

    def _ask_until_same_version(
        self, ask: Callable[[_Replica, float], _Answer], replica: _Replica, seconds: float
    ) -> _Answer:
        """Asks a replica; if it has another version of the dataset, asks again over up to MOST_CONNECTIONS connections.

        See MOST_CONNECTIONS for the reason: each connection may reach another process.
        """
        end = time.monotonic() + seconds
        number = 0
        while True:
            number += 1
            try:
                return ask(replica, max(end - time.monotonic(), _LEAST_SECONDS))
            except DigestMismatchError:
                replica.renew()
                if number >= MOST_CONNECTIONS or time.monotonic() >= end:
                    raise

    def _messages(
        self,
        replica: _Replica,
        call: Any,
        parse: Callable[[bytes], _Response],
        first_seconds: float,
        next_seconds: Callable[[], float],
    ) -> Generator[_Response]:
        """Yields a stream's messages, decoded by `parse`; cancels the call when the generator is closed.

        The first message may take `first_seconds`; each later one what `next_seconds` says before it.
        """
        self._calls.add(call)
        seconds = first_seconds
        try:
            while (data := next_message(call, seconds)) is not None:
                yield parse(data)
                seconds = next_seconds()
        except GeneratorExit:
            raise  # first, because at the end of the process the names in the next lines may be gone
        except DecodeError:
            raise DamagedAnswerError(f"a message of {replica.name} cannot be read: bytes changed on the way") from None
        except (grpc.RpcError, NoMessageError) as error:
            raise self._recorded_failure(replica, error) from None
        finally:
            if call in self._calls:  # else `close` has ended it, perhaps with the process
                call.cancel()
                self._calls.discard(call)

    def _replicas_in_order(self) -> list[_Replica]:
        """Returns all replicas in random order, but those that failed in the last AVOID_SECONDS at the end.

        Forgets the replicas of a parent process after a fork, and looks the hosts' names up again after a failure.
        """
        if self._pid != os.getpid():
            self._replicas, self._calls, self._is_looked_up = {}, set(), False
            self._pid = os.getpid()
        if not _ANCHORS:
            keep_freed_memory()
            _ANCHORS.append(grpc.insecure_channel("127.0.0.1:1"))  # connects to nothing until it is used
        if not self._is_looked_up:
            addresses = [address for host in self._hosts for address in addresses_of(host)]
            known = self._replicas
            self._replicas = {
                address: known.get(address) or _Replica(address, self._credentials) for address in addresses
            }
            self._is_looked_up = True
        replicas = list(self._replicas.values())
        _RANDOM.shuffle(replicas)
        long_ago = time.monotonic() - AVOID_SECONDS
        return sorted(replicas, key=lambda replica: replica.failed_at if replica.failed_at > long_ago else -math.inf)

    def _record_answer(self, replica: _Replica) -> None:
        replica.failed_at = -math.inf
        replica.has_answered = True
        _ANSWERED.add(self.target)

    def _recorded_failure(self, replica: _Replica, error: grpc.RpcError | NoMessageError) -> PackhorseError:
        """Returns the client's exception for an error, and records the failure.

        The replica is avoided for a while, its connection is replaced if it broke, and names are looked up again.
        """
        if replica.is_closed and not isinstance(error, NoMessageError):
            return PackhorseError(f"{self.target}: the client was closed during a call")
        failure = replica.failure(error)
        is_broken = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
        if is_broken and isinstance(failure, ServerUnavailableError):
            failure = replica.refusal() or failure
        if isinstance(failure, ServerUnavailableError) or (is_broken and isinstance(failure, AccessDeniedError)):
            replica.renew()
        else:
            _ANSWERED.add(self.target)
        if isinstance(failure, (TransientError, *_PERHAPS_ELSEWHERE)):
            replica.failed_at = time.monotonic()
            self._is_looked_up = False  # the name may have other addresses by now
        return failure
