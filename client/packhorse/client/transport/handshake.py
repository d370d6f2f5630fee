"""Why a connection does not open: repeats the TLS handshake without gRPC, and reads when a certificate expires.

gRPC does not say why a connection was refused. Leaves errors of calls to `grpc_errors`, and proxies to `_proxies`.
"""

import ssl
import time
from datetime import UTC, datetime

from packhorse.client.errors import AccessDeniedError
from packhorse.client.transport._proxies import connect
from packhorse.client.transport.access import Access, variable_of
from packhorse.client.transport.addresses import Endpoint
from packhorse.wire.certificates import days_until

_WAIT_SECONDS = 1.0
"""The most time for each wait: connecting, the handshake, the first answer."""

_HANDSHAKES = 2
"""A server that closes the connection after this many handshakes in a row refuses the client. One that is shutting down
does so once."""
_PAUSE_SECONDS = 0.05
"""The pause after each of them."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons if the answer to a handshake is not TLS."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 connection: the protocol's preface, and an empty SETTINGS frame."""


def refusal_of(endpoint: Endpoint, access: Access, *, uses_tls: bool) -> AccessDeniedError | None:
    """Returns why the server refuses this client, or this client the server; None if TLS is not the cause.

    Args:
        endpoint: the server's socket.
        access: the client's certificates.
        uses_tls: whether the client's channel uses TLS.
    """
    try:
        if not uses_tls:
            return _refusal_of_plain_text(endpoint)
        for _ in range(_HANDSHAKES):
            if not _closes_at_once(endpoint, access):
                return None
            time.sleep(_PAUSE_SECONDS)
    except AccessDeniedError as refusal:
        return refusal
    except (OSError, ValueError):
        return None
    return _denied("client-certificate", _why_refused(endpoint, access))


def days_left(endpoint: Endpoint, access: Access) -> float:
    """Returns the days until the server's certificate expires.

    Raises:
        AccessDeniedError: the certificate is not valid, or the server refuses this client.
        OSError: the connection broke.
    """
    with _secure_connection(endpoint, access) as connection:
        certificate = connection.getpeercert() or {}
    return days_until(datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC))


def _closes_at_once(endpoint: Endpoint, access: Access) -> bool:
    """Whether the server closes the connection right after the handshake, as TLS 1.3 does to reject a certificate."""
    with _secure_connection(endpoint, access) as connection:
        try:
            connection.sendall(_PREFACE)
            return not connection.recv(1)
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")


def _secure_connection(endpoint: Endpoint, access: Access) -> ssl.SSLSocket:
    """Returns a connection after a handshake as strict as gRPC's; an AccessDeniedError if one end refuses.

    The files of `access` are read again, and it must have a `ca`.
    """
    context = ssl.create_default_context(cafile=str(access.ca))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # gRPC is not strict either
    context.hostname_checks_common_name = False  # nor does it look at the subject's common name
    context.set_alpn_protocols(["h2"])
    if access.cert is not None and access.key is not None:
        try:
            context.load_cert_chain(access.cert, access.key, password="")  # else OpenSSL would ask at the terminal
        except (ssl.SSLError, ValueError) as error:
            raise _denied("client-certificate", f"cert and key do not belong together: {error}") from None
    server = f"{endpoint.server_name}:{endpoint.port}"
    plain = connect(endpoint.host, endpoint.port, _WAIT_SECONDS, endpoint.proxy)
    try:
        return context.wrap_socket(plain, server_hostname=endpoint.server_name)
    except ssl.SSLCertVerificationError as error:
        raise _denied(
            "server-certificate",
            f"{server} shows a certificate that {access.ca} does not vouch for: {error.verify_message}",
        ) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason:
            raise _denied("client-certificate", _why_refused(endpoint, access)) from None
        if reason not in _NO_TLS:
            raise
        raise _denied(
            "plain-text",
            f"{server} speaks plain text, and ca asks for TLS: give the server tls_cert, or leave ca out",
        ) from None
    finally:
        plain.close()  # has no effect on a wrapped connection, which has taken the socket over


def _refusal_of_plain_text(endpoint: Endpoint) -> AccessDeniedError:
    """Returns the error for a client of plain text whose server answers a TLS handshake; else raises an OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        connect(endpoint.host, endpoint.port, _WAIT_SECONDS, endpoint.proxy) as plain,
        context.wrap_socket(plain),
    ):
        return _denied(
            "plain-text",
            f"{endpoint.host}:{endpoint.port} speaks TLS, and this client plain text: give ca=… (the CA of its "
            f"certificate), or set {variable_of('ca')}",
        )


def _why_refused(endpoint: Endpoint, access: Access) -> str:
    """Returns the message for a server that refuses the client's certificate, or asks for one."""
    server = f"{endpoint.server_name}:{endpoint.port}"
    if access.cert is None:
        return (
            f"{server} closes the connection: it wants a client's certificate; give cert=… and key=…, or "
            f"set {variable_of('cert')} and {variable_of('key')}"
        )
    return (
        f"{server} refuses the client's certificate {access.cert}: it has expired, or is of a CA that the "
        "server does not know (its tls_client_ca)"
    )


def _denied(cause: str, message: str) -> AccessDeniedError:
    """Returns the exception for a refused connection; programs tell the causes apart by the word `cause`."""
    return AccessDeniedError(message, {"cause": cause})
