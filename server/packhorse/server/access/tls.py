"""The server's certificates, read again whenever their files change.

Owns the files, their check, and the two forms of certificates: one for gRPC, one for the metrics' port. Leaves who may
connect without TLS to `app.config`.
"""

import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc

from packhorse.parameters import parameter
from packhorse.storage import Watched, read_plain
from packhorse.wire.certificates import expiry_of

FRESH_SECONDS = 0.25
"""Seconds after which the files are looked at again. Not at every connection: thousands may open at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """The PEM files of a server."""

    cert: Path
    """The server's certificate, followed by the intermediate ones between it and the CA that clients trust."""
    key: Path
    """The certificate's private key, without a passphrase."""
    client_ca: Path | None = None
    """CAs of the clients' certificates; None if clients need none."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all files."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class _Loaded(NamedTuple):
    """The content of the files, in the two forms in which ports take it."""

    for_grpc: grpc.ServerCertificateConfiguration
    for_metrics: ssl.SSLContext


class Certificates:
    """Certificates for new connections, always the files' current ones; open connections keep theirs.

    If files change into something unusable (half copied, a key of another certificate), the previous certificates stay
    in use, and the log says why.

    Args:
        files: the PEM files.

    Raises:
        ValueError: a file cannot be used; the message names its option.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current = Watched("the certificates", files.paths, self._read, fresh_seconds=FRESH_SECONDS)

    @property
    def trouble(self) -> str:
        """What is wrong with the files now; empty if nothing is."""
        return self._current.trouble

    def expiries(self) -> dict[str, float]:
        """Returns when the certificates expire, by their files' names, in seconds since 1970.

        If two files of different folders have one name, it stands for the one that expires first.
        """
        expiries: dict[str, float] = {}
        for path in filter(None, (self._files.cert, self._files.client_ca)):
            with suppress(ValueError, OSError):  # `trouble` says what is wrong with it
                expiry = expiry_of(path).timestamp()
                expiries[path.name] = min(expiry, expiries.get(path.name, expiry))
        return expiries

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of a gRPC port, which fetches changed certificates at every new connection."""
        current = self._current.get().for_grpc

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """Returns the new certificates; None while they are the same.

            Whenever gRPC gets certificates, it frees the handshakers of the previous ones, even if a connection is
            using them. Passing the same certificates for each of a thousand connections ended the process.
            """
            nonlocal current
            before, current = current, self._current.get().for_grpc
            return None if current is before else current

        return grpc.dynamic_ssl_server_credentials(
            current,
            changed,  # type: ignore[arg-type]  # None is documented
            self._files.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the context of a new connection of the metrics' port."""
        return self._current.get().for_metrics

    def _read(self) -> _Loaded:
        """Reads and checks the files; raises a ValueError that names the option of a wrong one."""
        files = self._files
        cert = _bytes_of("tls_cert", files.cert)
        key = _bytes_of("tls_key", files.key)
        client_ca = None if files.client_ca is None else _bytes_of("tls_client_ca", files.client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # also the check: gRPC notices errors when somebody connects
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(files.cert, files.key, password="")  # never asks on the terminal
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                parameter("tls_cert")
                + f" {files.cert} and "
                + parameter("tls_key")
                + f" {files.key} are not a certificate and its key (PEM, no passphrase): {error}"
            ) from None
        if client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(
                    parameter("tls_client_ca") + f" {files.client_ca} holds no certificates (PEM): {error}"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return _Loaded(grpc.ssl_server_certificate_configuration([(key, cert)], client_ca), context)


def _bytes_of(option: str, path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise ValueError(parameter(option) + f" {path} cannot be read: {error.strerror}") from None
