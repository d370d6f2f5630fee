"""Why a call failed: from gRPC's error to the client's exception, and from a broken connection to its cause.

Owns which failures are the service's answers, which can never work, and which are accidents of the network. Accidents
are transient: every request may be sent again. gRPC does not say why a connection was refused, so the handshake is
tried once more by hand. Leaves connections that carry calls to `transport.grpc_channels`.
"""

import socket
import ssl
import time
from datetime import UTC, datetime

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
    UnauthenticatedError,
)
from packhorse.client.transport.access import Access, variable_of
from packhorse.client.transport.requests import bounded
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire.addresses import days_until

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
