"""Why a call failed, and how long and how often the client tries.

Owns the way from gRPC's error to the client's exception, and from a broken connection to its cause. A failure is the
service's answer, can never work, or is an accident of the network. Accidents are transient: every request may be sent
again. gRPC does not say why a connection was refused, so the handshake is tried once more by hand. Owns the attempts of
a series with their log lines, and the one thread of this process that cancels overdue calls. Leaves the numbers to
`RetryPolicy`, and connections and limits of gRPC's calls to `transport.grpc_channels`.
"""

import logging
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from packhorse.client.errors import (
    EXCEPTION_OF_REASON,
    AccessDeniedError,
    DatasetNotFoundError,
    InvalidRequestError,
    NotImplementedByServerError,
    PackhorseError,
    RequestTooLargeError,
    ServerUnavailableError,
    TooManyRequestsError,
    TransientError,
    UnauthenticatedError,
)
from packhorse.client.transport.access import Access, variable_of
from packhorse.client.transport.requests import bounded, shortened
from packhorse.formats.retry_policy import RetryPolicy, checked_seconds
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire.addresses import days_until

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

SHORTEST_ATTEMPT_SECONDS = 0.5
"""The least time of an attempt, however close the deadline."""
TOLD_EVERY_SECONDS = 10.0


def policy_of(timeout_seconds: float | None, retry: RetryPolicy | None) -> RetryPolicy:
    """Returns the policy of two arguments of `connect`; a ValueError where both are given, or one is out of range."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ValueError(f"retry must be a RetryPolicy, e.g. RetryPolicy(deadline_seconds=60), got {shortened(retry)}")
    if timeout_seconds is None:
        return retry or RetryPolicy()
    if retry is not None:
        raise ValueError("timeout_seconds and retry are both given; give RetryPolicy(deadline_seconds=…) alone")
    if not checked_seconds("timeout_seconds", timeout_seconds):
        raise ValueError("timeout_seconds must be above 0; RetryPolicy(deadline_seconds=0) is for a single try")
    return RetryPolicy(deadline_seconds=timeout_seconds, connect_seconds=timeout_seconds)


class Attempts:
    """One series of attempts under a policy.

    Args:
        policy: how long and how often.
        has_answered: whether the service has ever answered.
    """

    def __init__(self, policy: RetryPolicy, *, has_answered: Callable[[], bool]) -> None:
        self._policy = policy
        self._has_answered = has_answered
        self._counts_from: float | None = None
        self._failures = 0
        self._told_at = -math.inf

    def begin(self) -> None:
        """Begins to count the deadline, unless an attempt has begun it."""
        if self._counts_from is None:
            self._counts_from = time.monotonic()

    def succeeded(self) -> None:
        """Resets the deadline and the delays after an answer."""
        if self._failures:
            _LOG.warning("answered again after %.1f s", self._elapsed_seconds())
        self._reset()

    def timeout_seconds(self) -> float:
        """The most that the next attempt may take."""
        if self._policy.deadline_seconds == 0:  # there is only this one
            return math.inf
        return max(SHORTEST_ATTEMPT_SECONDS, self._policy.deadline_seconds - self._elapsed_seconds())

    def wait_after(self, error: TransientError) -> bool:
        """Sleeps before the next attempt; returns False at once where the deadline would pass.

        The error's text then says how long the client tried, and the next failure begins another series.
        """
        self.begin()
        is_known = self._has_answered() or not isinstance(error, ServerUnavailableError)
        limit = self._policy.limit_seconds(is_known=is_known)
        self._failures += 1
        delay = max(self._policy.delay_seconds(self._failures), error.retry_after_seconds or 0.0)
        elapsed = self._elapsed_seconds()
        if elapsed + delay > limit or limit == 0:
            if not is_known:
                tried = f"tried for {elapsed:.0f} s; " if self._failures > 1 or elapsed >= 1 else ""
                error.args = (f"{error} ({tried}is a server listening there?)",)
            self._reset()
            return False
        self._tell(error, elapsed, limit)
        time.sleep(delay)
        return True

    def run(self, attempt: Callable[[], _Result], *, let_go: Callable[[], None] = lambda: None) -> _Result:
        """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

        `let_go` is called after every TransientError.
        """
        while True:
            try:
                return attempt()
            except TransientError as error:
                let_go()
                if not self.wait_after(error):
                    raise

    def _tell(self, error: TransientError, elapsed: float, limit: float) -> None:
        """Logs the first failure, then at most a line in ten seconds."""
        if self._failures == 1:
            _LOG.warning("%s; trying again for up to %g s", error, limit)
        elif time.monotonic() - self._told_at >= TOLD_EVERY_SECONDS:
            _LOG.warning("still no answer after %.0f s of %g s: %s", elapsed, limit, error)
        else:
            return
        self._told_at = time.monotonic()

    def _elapsed_seconds(self) -> float:
        return 0.0 if self._counts_from is None else time.monotonic() - self._counts_from

    def _reset(self) -> None:
        self._failures = 0
        self._counts_from = None


def with_retries(
    policy: RetryPolicy, attempt: Callable[[float], _Result], *, has_answered: Callable[[], bool]
) -> _Result:
    """Returns the result of the first attempt that succeeds; a TransientError once the deadline has passed.

    An attempt takes the seconds that it may last; `has_answered` says whether the service has ever answered.
    """
    attempts = Attempts(policy, has_answered=has_answered)
    attempts.begin()
    result = attempts.run(lambda: attempt(attempts.timeout_seconds()))
    attempts.succeeded()
    return result


_Message = TypeVar("_Message", covariant=True)


class Call(Protocol[_Message]):
    """A gRPC call that yields messages."""

    def __next__(self) -> _Message: ...
    def __iter__(self) -> Iterator[_Message]: ...
    def cancel(self) -> Any:
        """Ends the call; waiting for its next message raises an error."""


class NoMessageError(Exception):
    """A call brought no message in time, and was cancelled."""


class Watchdog:
    """Cancels calls whose next message is overdue: gRPC limits whole calls, and a stream may take hours.

    One thread serves all connections of a process, so a message costs two dictionary entries. It ends when the last
    message that it waited for would have been overdue.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[int, tuple[float, Call[Any]]] = {}  # id of a call -> when its message is due
        self._overdue: set[int] = set()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def next_message(self, call: Call[_Message], seconds: float) -> _Message | None:
        """Returns a call's next message, or None at its end; a NoMessageError where it does not come in time."""
        due = time.monotonic() + seconds
        with self._changed:
            self._due[id(call)] = (due, call)
            if due < self._wakes_at:
                self._wake_at(due)
        try:
            return next(call, None)
        except Exception:
            if id(call) in self._overdue:
                raise NoMessageError(f"no message within {seconds:.1f} s") from None
            raise
        finally:
            with self._changed:
                del self._due[id(call)]
                self._overdue.discard(id(call))

    def _wake_at(self, due: float) -> None:
        self._wakes_at = due
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="packhorse-watchdog", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while waiting := {key: due for key, (due, _) in self._due.items() if key not in self._overdue}:
                self._wakes_at = min(waiting.values())
                self._changed.wait(self._wakes_at - time.monotonic())
                for key, (due, call) in self._due.items():
                    if due <= time.monotonic() and key not in self._overdue:
                        self._overdue.add(key)
                        call.cancel()
            self._wakes_at = math.inf
            self._thread = None


_WATCHDOG = Watchdog()


def _begin_again() -> None:
    # A fork has neither its parent's threads nor its calls.
    global _WATCHDOG
    _WATCHDOG = Watchdog()


os.register_at_fork(after_in_child=_begin_again)


def next_message(call: Call[_Message], seconds: float) -> _Message | None:
    """See `Watchdog.next_message`."""
    return _WATCHDOG.next_message(call, seconds)


DOMAIN = "packhorse.v1"

_WITHOUT_REASON: dict[grpc.StatusCode, type[PackhorseError]] = {
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByServerError,  # an older server, or a web server
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,  # a service whose details were lost on the way
    grpc.StatusCode.NOT_FOUND: DatasetNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyRequestsError,
}
"""The meaning of a status without one of our reasons. Others come from the network, a proxy or a broken server:
ServerUnavailableError."""

_OVER_SIZE = "larger than max"
"""gRPC's text for a message over a limit of either end; other RESOURCE_EXHAUSTED pass."""


def exception_of(error: grpc.RpcError, target: str) -> PackhorseError:
    """Returns the client's exception for an error of a call to a target; never raises."""
    assert isinstance(error, grpc.Call)  # a stub raises errors that are both
    info, retry, text = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), ""
    try:
        status = rpc_status.from_call(error)
        text = status.message if status else ""
        for detail in status.details if status else ():
            for message in (info, retry):
                if detail.Is(message.DESCRIPTOR):
                    detail.Unpack(message)
    except (ValueError, DecodeError):  # the trailer was cut or altered on the way: only the status is left
        info.Clear()
    delay = retry.retry_delay.ToMilliseconds() / 1000 or None
    name = f"ERROR_REASON_{info.reason}"
    if info.domain == DOMAIN and name in pb.ErrorReason.keys():  # noqa: SIM118 (no mapping, though it has keys)
        kind = EXCEPTION_OF_REASON[pb.ErrorReason.Value(name)]
        return kind(bounded(text), info.metadata, retry_after_seconds=delay)
    code, details = error.code(), error.details() or ""
    kind = _WITHOUT_REASON.get(code, ServerUnavailableError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_SIZE in details:
        kind = RequestTooLargeError
    return kind(f"{target}: {code.name}: {bounded(details)}", retry_after_seconds=delay)


SECONDS = 1.0
"""How long each step may take."""

_PAUSE_SECONDS = 0.05

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's names for an answer that is not TLS."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How HTTP/2 begins: the protocol's name, and empty settings."""


def refusal_of(host: str, port: int, server_name: str, access: Access, *, uses_tls: bool) -> AccessDeniedError | None:
    """Returns why a server or this client refuses the other; None where certificates are not the cause.

    The certificate must be for `server_name`.
    """
    try:
        if not uses_tls:
            return _speaks_tls(host, port)
        for _ in range(2):  # a server that is shutting down looks the same, once
            if not _closes_at_once(host, port, server_name, access):
                return None
            time.sleep(_PAUSE_SECONDS)
    except AccessDeniedError as refusal:
        return refusal
    except (OSError, ValueError):
        return None
    return _denied("client-certificate", _why_refused(server_name, port, access))


def days_left(host: str, port: int, server_name: str, access: Access) -> float:
    """Returns for how many days the server's certificate is valid.

    Raises:
        AccessDeniedError: it is not valid, or the server refuses this client.
        OSError: the connection broke.
    """
    with _secure_connection(host, port, server_name, access) as connection:
        certificate = connection.getpeercert() or {}
    return days_until(datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC))


def _closes_at_once(host: str, port: int, server_name: str, access: Access) -> bool:
    """Whether a server ends the connection after the handshake, which with TLS 1.3 means it rejects the certificate."""
    with _secure_connection(host, port, server_name, access) as connection:
        try:
            connection.sendall(_PREFACE)
            return not connection.recv(1)
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")


def _secure_connection(host: str, port: int, server_name: str, access: Access) -> ssl.SSLSocket:
    """Returns a connection after a handshake as strict as gRPC's; an AccessDeniedError where one end refuses."""
    context = ssl.create_default_context(cafile=str(access.ca))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # gRPC is not
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["h2"])
    if access.cert is not None and access.key is not None:
        try:
            context.load_cert_chain(access.cert, access.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise _denied("client-certificate", f"cert and key do not belong together: {error}") from None
    plain = socket.create_connection((host, port), SECONDS)
    try:
        return context.wrap_socket(plain, server_hostname=server_name)
    except ssl.SSLCertVerificationError as error:
        cause = "server-certificate"
        why = f"shows a certificate that {access.ca} does not vouch for: {error.verify_message}"
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason:
            raise _denied("client-certificate", _why_refused(server_name, port, access)) from None
        if reason not in _NO_TLS:
            raise
        cause, why = "plain-text", "speaks plain text, and ca asks for TLS: give the server tls_cert, or leave ca out"
    finally:
        plain.close()  # a socket that was wrapped has left it
    raise _denied(cause, f"{server_name}:{port} {why}")


def _speaks_tls(host: str, port: int) -> AccessDeniedError | None:
    """Returns an error for a server that answers to TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), SECONDS) as plain, context.wrap_socket(plain):
        return _denied(
            "plain-text",
            f"{host}:{port} speaks TLS, and this client plain text: give ca=… (the CA of its certificate), or set "
            f"{variable_of('ca')}",
        )


def _why_refused(server_name: str, port: int, access: Access) -> str:
    if access.cert is None:
        return (
            f"{server_name}:{port} closes the connection: it wants a client's certificate; give cert=… and key=…, or "
            f"set {variable_of('cert')} and {variable_of('key')}"
        )
    return (
        f"{server_name}:{port} refuses the client's certificate {access.cert}: it has expired, or is of a CA that the "
        "server does not know (its tls_client_ca)"
    )


def _denied(cause: str, message: str) -> AccessDeniedError:
    return AccessDeniedError(message, {"cause": cause})
