"""The transport to servers: gRPC calls to the replicas of the service.

Owns the choice of a replica for each call, and the most time that a call may take; one that fails is tried once at each
other replica. Leaves the channel to a replica to `transport.replica`, what a target means to
`transport.addresses`, later attempts to `transport.retries`, and resuming to `streams/stream`.
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
from packhorse.client.transport.access import NO_ACCESS, Access
from packhorse.client.transport.addresses import Address, addresses_of, hosts_of
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.methods import PACK_SEQUENCES, Method, no_deadline
from packhorse.client.transport.replica import AVOID_SECONDS, Replica
from packhorse.client.transport.retries import SHORTEST_ATTEMPT_SECONDS
from packhorse.storage import SharedSet
from packhorse.wire import keep_freed_memory

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Answer = TypeVar("_Answer")

ANSWER_SECONDS = 30.0
"""The most time for one replica to answer a request, or to send a stream's first message."""
PACK_SECONDS = 120.0
"""The same for PackSequences and a PackStream's messages: a million distinct lengths take half a minute."""
STALL_SECONDS = 60.0
"""The most time for the next block of an open stream. A healthy server makes a block within 10 seconds."""
MOST_CONNECTIONS = 16
"""Connections to try at one address if it has another version of a dataset: several server processes may share the
address, and some may have started after the dataset's folder was replaced, while others still serve the old version."""
_LEAST_SECONDS = 0.1
"""The least time to ask a replica, however close the deadline."""

_MAY_WORK_ELSEWHERE = (
    AccessDeniedError,
    DatasetCorruptError,
    DatasetNotFoundError,
    DigestMismatchError,
    NotImplementedByServerError,
    VersionMismatchError,
)
"""Refusals of one replica after which the others are asked, because they may not refuse."""

_ANCHORS: list[grpc.Channel] = []
"""One idle channel, kept for the life of the process. Without it gRPC's engine stops with the last channel, and if the
process forks meanwhile (a DataLoader, right after `len(dataset)`), calls in the children never return."""

_ANSWERED = SharedSet()
"""Targets that have ever answered this process or one of its forks. Workers begin each epoch with new connections, and
should wait longer for a server that restarts than for one that was never there."""

_TRANSPORTS: "WeakSet[GrpcTransport]" = WeakSet()
"""The transports of this process, which `_end_calls` closes at its end."""

_RANDOM = random.SystemRandom()  # the global generator has the same seed on all ranks, which would choose one replica


@atexit.register
def _end_calls() -> None:
    """Closes streams that are open when the process ends; later gRPC could not end them, and would write to stderr."""
    for transport in list(_TRANSPORTS):
        transport.close()


def has_used_grpc() -> bool:
    """Whether this process, or one that it was forked from, has opened a channel; its forks may then stall."""
    return bool(_ANCHORS)


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
        self._replicas: dict[Address, Replica] = {}
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

        def ask(replica: Replica, seconds: float) -> _Response:
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

        most_seconds = PACK_SECONDS if method is PACK_SEQUENCES else ANSWER_SECONDS
        return self._first_answer(ask, timeout_seconds, most_seconds=most_seconds)

    def stream(
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = no_deadline
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests; closing this iterator ends the call.

        An iterator of requests can be read only once, so only one replica is asked.
        """
        is_iterator = isinstance(request, Iterator)
        most_seconds = PACK_SECONDS if is_iterator else STALL_SECONDS

        def next_seconds() -> float:
            """Returns the time for a later message: half of what is left, so that there is time for another attempt."""
            return min(most_seconds, max(seconds_left() / 2, SHORTEST_ATTEMPT_SECONDS))

        def open_stream(replica: Replica, seconds: float) -> tuple[_Response | None, Generator[_Response]]:
            """Returns the first message of a replica's stream, None if it has none, and the iterator of the others."""
            call = replica.stream(method, request, metadata=self._credentials.metadata)
            messages = self._messages(replica, call, method.parse, first_seconds=seconds, next_seconds=next_seconds)
            return next(messages, None), messages

        first_message, messages = self._first_answer(
            open_stream, seconds_left(), most_seconds=ANSWER_SECONDS, most_replicas=1 if is_iterator else None
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
        ask: Callable[[Replica, float], _Answer],
        timeout_seconds: float,
        *,
        most_seconds: float,
        most_replicas: int | None = None,
    ) -> _Answer:
        """Asks one replica after the other, and returns the first answer.

        Args:
            ask: function that asks a replica, within the seconds that are its second argument.
            timeout_seconds: the time for all replicas together: each gets an equal share of what is left.
            most_seconds: the most time for one replica.
            most_replicas: the most replicas to ask; None for all.

        Raises:
            TransientError: no replica answered, and at least one failed in a way that may pass.
            PackhorseError: every replica refuses, or one refuses in a way that the others would too.
        """
        end = time.monotonic() + timeout_seconds
        refusal: PackhorseError | None = None
        transient: TransientError | None = None
        replicas = self._replicas_in_order()[:most_replicas]
        for num_asked, replica in enumerate(replicas):
            share = max(end - time.monotonic(), _LEAST_SECONDS) / (len(replicas) - num_asked)
            try:
                answer = self._ask_until_same_version(ask, replica, min(share, most_seconds))
            except TransientError as failure:
                transient = failure
            except _MAY_WORK_ELSEWHERE as failure:
                refusal = refusal or failure
            else:
                self._record_answer(replica)
                return answer
        if transient is None:
            assert refusal is not None
            raise refusal
        if refusal is not None:
            transient.args = (f"{transient}; another replica: {refusal}",)
        raise transient

    def _ask_until_same_version(
        self, ask: Callable[[Replica, float], _Answer], replica: Replica, seconds: float
    ) -> _Answer:
        """Returns a replica's answer; while it has another version of the dataset, asks it over further connections.

        Each connection may reach another process; see MOST_CONNECTIONS.
        """
        end = time.monotonic() + seconds
        num_asked = 0
        while True:
            num_asked += 1
            try:
                return ask(replica, max(end - time.monotonic(), _LEAST_SECONDS))
            except DigestMismatchError:
                replica.renew()
                if num_asked >= MOST_CONNECTIONS or time.monotonic() >= end:
                    raise

    def _messages(
        self,
        replica: Replica,
        call: Any,
        parse: Callable[[bytes], _Response],
        *,
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
        except GeneratorExit:  # before the other clauses, whose names may be gone at the end of the process
            raise
        except DecodeError:
            raise DamagedAnswerError(f"a message of {replica.name} cannot be read: bytes changed on the way") from None
        except (grpc.RpcError, NoMessageError) as error:
            raise self._recorded_failure(replica, error) from None
        finally:
            if call in self._calls:  # else `close` has ended it, perhaps with the process
                call.cancel()
                self._calls.discard(call)

    def _replicas_in_order(self) -> list[Replica]:
        """Returns all replicas in random order, but those that failed in the last AVOID_SECONDS at the end."""
        if self._pid != os.getpid():  # a fork: the replicas and calls are those of the parent process
            self._replicas, self._calls, self._is_looked_up = {}, set(), False
            self._pid = os.getpid()
        if not _ANCHORS:
            keep_freed_memory()
            _ANCHORS.append(grpc.insecure_channel("127.0.0.1:1"))  # connects to nothing until it is used
        if not self._is_looked_up:
            self._look_up_replicas()
        replicas = list(self._replicas.values())
        _RANDOM.shuffle(replicas)
        avoid_since = time.monotonic() - AVOID_SECONDS
        # A stable sort, which leaves those that may be asked in their random order.
        return sorted(replicas, key=lambda each: each.failed_at if each.failed_at > avoid_since else -math.inf)

    def _look_up_replicas(self) -> None:
        """Looks the hosts' names up, and keeps the replicas that are known by their addresses."""
        addresses = [address for host in self._hosts for address in addresses_of(host)]
        known = self._replicas
        self._replicas = {address: known.get(address) or Replica(address, self._credentials) for address in addresses}
        self._is_looked_up = True

    def _record_answer(self, replica: Replica) -> None:
        """Records that a replica has answered: it is no longer avoided, and its target exists."""
        replica.failed_at = -math.inf
        replica.has_answered = True
        _ANSWERED.add(self.target)

    def _recorded_failure(self, replica: Replica, error: grpc.RpcError | NoMessageError) -> PackhorseError:
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
        else:  # the service itself refused
            _ANSWERED.add(self.target)
        if isinstance(failure, (TransientError, *_MAY_WORK_ELSEWHERE)):
            replica.failed_at = time.monotonic()
            self._is_looked_up = False  # the name may have other addresses by now
        return failure
