"""The server's certificates, read again whenever their files change.

Owns the files, their check and the two forms in which gRPC and the metrics' port take them; leaves who may connect
without TLS to `config`.
"""

import logging
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from packhorse.server.base.stamps import FileStamps
from packhorse.wire.addresses import end_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """Where certificates lie, as PEM."""

    cert: Path
    """The server's certificate, followed by those between it and the clients' CA."""
    key: Path
    """Its private key, without a passphrase."""
    client_ca: Path | None = None
    """CAs of the clients' certificates; None where clients need none."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class Certificates:
    """Certificates for new connections, always those that the files hold now; open connections keep theirs.

    Files that changed into something unusable (half copied, a key of another certificate) are left alone, with a line
    in the log, and the certificates before them stay in use.

    Args:
        files: where they lie.

    Raises:
        ValueError: a file cannot be used; the message names its flag.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._stamps = FileStamps(files.paths)
        self._trouble = ""
        self._configuration, self._context = self._read()

    @property
    def trouble(self) -> str:
        """What is wrong with the files now; empty where nothing is."""
        self._renew()
        return self._trouble

    def ends(self) -> dict[str, float]:
        """Returns when the certificates expire, by their files' names, in seconds since 1970."""
        ends = {}
        for path in (self._files.cert, *(() if self._files.client_ca is None else (self._files.client_ca,))):
            with suppress(ValueError, OSError):  # `trouble` says what is wrong with it
                ends[path.name] = end_of(path).timestamp()
        return ends

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns what a gRPC port takes; it asks for other certificates at every new connection."""
        given = self._configuration

        def other() -> grpc.ServerCertificateConfiguration | None:
            """Returns None as long as they are the same.

            Where they are not, gRPC frees what it made of those before, even under a connection that begins at that
            moment. To be told the same again for each of a thousand connections ended the process.
            """
            nonlocal given
            self._renew()
            if self._configuration is given:
                return None
            given = self._configuration
            return given

        return grpc.dynamic_ssl_server_credentials(
            given,
            other,  # type: ignore[arg-type]  # None is documented
            self._files.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the context of a new connection that is not gRPC's."""
        self._renew()
        return self._context

    def _renew(self) -> None:
        """Reads the files again where they changed."""
        with self._lock:
            if not self._stamps.changed():
                return
            try:
                self._configuration, self._context = self._read()
            except ValueError as error:
                _LOG.error("the certificates changed but cannot be used, so the old ones stay: %s", error)
                self._trouble = f"{error}; the certificates before stay in use"
            else:
                self._trouble = ""
                _LOG.info("the certificates changed; new connections get the new ones")

    def _read(self) -> tuple[grpc.ServerCertificateConfiguration, ssl.SSLContext]:
        files = self._files
        cert = _bytes_of("--tls-cert", files.cert)
        key = _bytes_of("--tls-key", files.key)
        client_ca = None if files.client_ca is None else _bytes_of("--tls-client-ca", files.client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # gRPC itself would notice nothing before a connection fails
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(files.cert, files.key, password="")  # never asks on the terminal
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                f"--tls-cert {files.cert} and --tls-key {files.key} are no certificate with its key (PEM, no "
                f"passphrase): {error}"
            ) from None
        if client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(f"--tls-client-ca {files.client_ca} holds no certificates (PEM): {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca), context


def _bytes_of(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read: {error.strerror}") from None
