"""The server's options: `packhorse serve` fills them in, from flags or PACKHORSE_… variables.

Owns the options and their checks. Leaves reading the certificates to `tls` and the tokens to `bearer_tokens`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from packhorse.parameters import parameter
from packhorse.server.access.tls import TlsFiles
from packhorse.wire import DEFAULT_ADDRESS, is_local

OVERDUE_SECONDS = 3.0
"""Seconds after the grace period at which the process ends, even if the shutdown is not finished."""

_MOST_GRACE_SECONDS = 86_400.0
"""The longest grace period, a day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """How a server runs.

    Raises:
        ValueError: an option is out of range; the message names it.
    """

    data_root: Path
    """Folder that contains the prepared folders."""
    listen: str = DEFAULT_ADDRESS
    """HOST:PORT (port 0 for a free one) or unix:PATH."""
    metrics_listen: str | None = None
    """HOST:PORT of /metrics; None for no metrics."""
    status_page: bool = True
    """Whether the port of the metrics has a status page for people."""
    grace_seconds: float = 30.0
    """How long streams may continue after SIGTERM."""
    max_streams: int = 4096
    """Streams open at once; more are refused with a retry delay."""
    tls_cert: Path | None = None
    """The server's certificate (PEM), for both ports; None for plain text. A unix socket stays plain."""
    tls_key: Path | None = None
    """The certificate's private key."""
    tls_client_ca: Path | None = None
    """CAs of the clients' certificates; None if clients need no certificate."""
    tokens: tuple[str, ...] = ()
    """Where the token ids of datasets are, if streams may send these too: training data. Empty if streams send only ids
    of sequences. See `Corpora.parse`; not the bearer tokens of `token_file`."""
    token_file: Path | None = None
    """File of bearer tokens, one of which every call needs: access. None if calls need none. See `bearer_tokens`; not
    the token ids of `tokens`."""
    insecure: bool = False
    """Whether the server may listen in plain text where other machines can connect."""
    reflection: bool = True
    """Whether gRPC's server reflection is offered."""
    workarounds: bool = True
    """Whether faults of gRPC and the operating system are worked around; see `base.workarounds`."""
    log_format: str = "text"
    """Format of log lines: text or json."""
    log_level: str = "info"
    """Least severe level that is logged, one of `logs.LEVELS`."""
    otlp_endpoint: str | None = None
    """URL of the collector that traces are sent to; None for no traces."""
    processes: int = 1
    """Processes that serve at `listen`; max_streams counts for all of them together."""

    def __post_init__(self) -> None:
        """Checks what flags cannot: addresses, ranges, and options that need each other."""
        if not self.listen.startswith("unix:"):
            split_address("listen", self.listen)
        if self.metrics_listen is not None:
            split_address("metrics_listen", self.metrics_listen)
        if not 0 <= self.grace_seconds <= _MOST_GRACE_SECONDS:
            raise ValueError(
                parameter("grace_seconds")
                + f" must be at least 0 and at most {_MOST_GRACE_SECONDS:g} (a day), got {self.grace_seconds:g}"
            )
        if self.max_streams < 1:
            raise ValueError(parameter("max_streams") + f" must be at least 1, got {self.max_streams}")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError(
                parameter("otlp_endpoint")
                + f" must be a URL for OTLP over HTTP, e.g. http://collector:4318, got {self.otlp_endpoint!r}"
            )
        self._check_processes()
        self._check_encryption()

    def _check_processes(self) -> None:
        """Refuses several processes if they cannot share the address."""
        if self.processes < 1:
            raise ValueError(parameter("processes") + f" must be at least 1, got {self.processes}")
        if self.processes > 1 and self.listen.startswith("unix:"):
            raise ValueError(
                parameter("processes", self.processes)
                + " needs "
                + parameter("listen", "HOST:PORT")
                + ": a unix socket belongs to one process; start several servers, each with its own socket, if "
                "clients use sockets"
            )
        if self.processes > 1 and sys.platform != "linux":
            raise ValueError(
                parameter("processes", self.processes) + " needs Linux: elsewhere processes do not share a port"
            )

    def _check_encryption(self) -> None:
        """Refuses an incomplete set of TLS files, and plain text that other machines can reach, unless `insecure`."""
        if (self.tls_cert is None) != (self.tls_key is None):
            present, missing = ("tls_key", "tls_cert") if self.tls_cert is None else ("tls_cert", "tls_key")
            raise ValueError(parameter(present) + " must be given together with " + parameter(missing))
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError(
                parameter("tls_client_ca")
                + " must be given together with "
                + parameter("tls_cert")
                + " and "
                + parameter("tls_key")
            )
        if self.tls_files is None and not self.insecure:
            for option, address in self.remote_addresses.items():
                raise ValueError(
                    parameter(option)
                    + f" {address} must not be reached from other machines in plain text: give "
                    + parameter("tls_cert")
                    + " and "
                    + parameter("tls_key")
                    + ", or listen on 127.0.0.1 or unix:PATH; "
                    + parameter("insecure", True)
                    + " if everybody who reaches the port may read everything"
                )

    @property
    def tls_files(self) -> TlsFiles | None:
        """Where the certificates are; None for plain text."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(cert=self.tls_cert, key=self.tls_key, client_ca=self.tls_client_ca)

    @property
    def remote_addresses(self) -> dict[str, str]:
        """Option → its address, for each address that other machines can reach."""
        addresses = {"listen": self.listen, "metrics_listen": self.metrics_listen}
        return {name: address for name, address in addresses.items() if address is not None and not is_local(address)}


def split_address(option: str, address: str) -> tuple[str, int]:
    """Splits HOST:PORT; raises a ValueError that names the option if the address is something else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(parameter(option) + f" must be HOST:PORT, e.g. 127.0.0.1:50051, got {address!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(
            parameter(option) + f" must have an IPv6 address in brackets, e.g. [::1]:50051, got {address!r}"
        )
    return host.strip("[]"), int(port)
