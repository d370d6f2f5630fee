"""Access to servers: the addresses that a target means, and the client's certificates and tokens.

Owns the form of targets and the look-up of names (`hosts_of`, `addresses_of`), the arguments with the environment
variables that replace them (`Access`), and what gRPC gets of both (`Credentials`). Leaves calls to
`transport.grpc_channels`, and embedded targets to `transport.embedded`.
"""

import ipaddress
import os
import queue
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import grpc

from packhorse.client.transport._proxies import Proxy, proxy_for
from packhorse.client.transport.requests import invalid, shortened
from packhorse.parameters import parameter
from packhorse.storage import read_plain
from packhorse.wire import is_local

LOOKUP_SECONDS = 3.0
"""Time to look up a name; after that gRPC does it."""

_MOST_SOCKET_BYTES = 107
"""The longest path of a socket: Linux has 108 bytes for it and the zero after it."""

_LEFT_TO_GRPC = ("unix:", "unix-abstract:", "vsock:", "xds:", "dns://")
_HOST_AND_PORT = re.compile(r"(?:dns:(?:///)?|ipv[46]:)?(\[[^\]\s]+\]|[^\s/:,\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where one replica listens."""

    target: str
    """The target of a gRPC channel, e.g. `10.0.0.7:50051`."""
    authority: str | None = None
    """The host:port that `target` was looked up from, and that the certificate is for; None if `target` is a name."""
    proxy: Proxy | None = None
    """The proxy that connections go through, which looks the name up; None for direct connections."""


class Endpoint(NamedTuple):
    """An address taken apart, for connecting without gRPC."""

    host: str
    """The replica's name or IP address, without brackets."""
    port: int
    """The replica's port."""
    server_name: str
    """The name that the replica's certificate is for."""
    proxy: Proxy | None = None
    """The proxy on the way; None for a direct connection."""


def hosts_of(target: str) -> tuple[str, ...]:
    """Returns the hosts that a target lists: `a:1,b:2` gives `a:1` and `b:2`; `dns:///a:1` gives `a:1`.

    A target that only gRPC understands, such as `unix:PATH`, is one host.

    Raises:
        InvalidRequestError: an entry is no address.
    """
    if target.startswith(_LEFT_TO_GRPC) and not target.startswith("dns:///"):
        _check_socket(target)
        return (target,)
    hosts = []
    for entry in target.split(","):
        match = _HOST_AND_PORT.fullmatch(entry.strip())
        if match is None or not 0 < int(match[2]) < 1 << 16:
            raise invalid(
                "target",
                f"{shortened(entry)} is no address; give HOST:PORT (several with commas), dns:///HOST:PORT, unix:PATH "
                "or embedded:DIR",
            )
        hosts.append(f"{match[1]}:{match[2]}")
    return tuple(hosts)


def addresses_of(host: str) -> list[Address]:
    """Returns an address for each IP address of a host; if it has only one, or cannot be looked up, the host itself.

    A host that is reached through a proxy is one address, because the proxy looks it up. It is reached directly if
    `no_proxy` lists its name, or if each of its IP addresses is listed or belongs to this machine.
    """
    name, _, port = host.removeprefix("dns:").rpartition("/")[2].rpartition(":")
    if host.startswith(_LEFT_TO_GRPC):
        return [Address(host, proxy=proxy_for(name, port) if host.startswith("dns:") else None)]
    proxy = proxy_for(name, port)
    if _is_literal(name):
        return [Address(host, proxy=proxy)]
    found = _looked_up(name)
    if found and all(proxy_for(ip, port) is None for ip in found):
        proxy = None
    if proxy is not None or len(found) < 2:
        return [Address(host, proxy=proxy)]
    return [Address(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", authority=host) for ip in found]


def address_of(host: str) -> Address:
    """Returns a host as one address; gRPC looks its name up and tries every IP address."""
    name, _, port = host.rpartition(":")
    return Address(host, proxy=None if proxy_for(name, port) is None else addresses_of(host)[0].proxy)


def endpoint_of(address: Address) -> Endpoint | None:
    """Returns an address taken apart; None if it is not a host and port, e.g. a unix socket."""
    if address.target.startswith(_LEFT_TO_GRPC):
        return None
    host, _, port = address.target.rpartition(":")
    name = host if address.authority is None else address.authority.rpartition(":")[0]
    return Endpoint(host.strip("[]"), int(port), name.strip("[]"), address.proxy)


def _check_socket(target: str) -> None:
    """Refuses a unix socket whose path is empty or too long, which gRPC would try to reach until the deadline."""
    scheme, _, path = target.partition(":")
    size = len(os.fsencode(path.removeprefix("//")))
    if scheme in ("unix", "unix-abstract") and not 0 < size <= _MOST_SOCKET_BYTES:
        raise invalid(
            "target",
            f"the path of a unix socket has 1 to {_MOST_SOCKET_BYTES} bytes, and {shortened(target)} has {size}; "
            "take another, e.g. under /tmp",
        )


def _is_literal(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _looked_up(name: str) -> list[str]:
    """Returns a name's IP addresses, only IPv4 or only IPv6, as this machine prefers; none after `LOOKUP_SECONDS`."""
    answers: queue.SimpleQueue[list[tuple[socket.AddressFamily, str]]] = queue.SimpleQueue()

    def look_up() -> None:  # getaddrinfo knows no timeout
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        answers.put([(family, str(address[0])) for family, _, _, _, address in found])

    threading.Thread(target=look_up, daemon=True).start()
    try:
        found = answers.get(timeout=LOOKUP_SECONDS)
    except queue.Empty:
        return []
    return list(dict.fromkeys(ip for family, ip in found if family == found[0][0]))


_ENVIRONMENT = "PACKHORSE_CLIENT_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Certificates and tokens of a client: `Server("…", access=Access(…))`.

    The environment gives what is left out: PACKHORSE_CLIENT_CA, PACKHORSE_CLIENT_CERT, PACKHORSE_CLIENT_KEY,
    PACKHORSE_CLIENT_TOKEN_FILE and PACKHORSE_CLIENT_INSECURE (1 for True). A unix socket needs no certificates, and an
    embedded target neither certificates nor tokens.

    Example:
        >>> Access(ca="ca.pem", token_file="/run/secrets/packhorse").ca
        'ca.pem'

    Raises:
        ValueError: arguments contradict each other.
    """

    ca: str | Path | None = None
    """File of the CAs that signed the server's certificate (PEM), for TLS."""
    cert: str | Path | None = None
    """File of this client's certificate (PEM), if the server requires one."""
    key: str | Path | None = None
    """File of the certificate's private key (PEM, no passphrase)."""
    token: str | None = field(default=None, repr=False)
    """Bearer token of every call. Prefer `token_file`: its contents are never printed or pickled."""
    token_file: str | Path | None = None
    """File that holds only the token; you may replace it at any time."""
    insecure: bool = False
    """Whether the token may be sent to other machines without TLS."""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key", "token_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | Path) or not str(value)):
                raise ValueError(f"{name} must be the path of a file, got {shortened(value)}")
        if self.token is not None and not (isinstance(self.token, str) and self.token.isascii() and self.token.split()):
            raise ValueError(parameter("token") + " must be a text of ASCII letters, digits and signs")
        if self.token is not None and self.token_file is not None:
            raise ValueError(
                parameter("token")
                + " and "
                + parameter("token_file")
                + " are both given; give "
                + parameter("token_file")
            )
        if not isinstance(self.insecure, bool):
            raise ValueError(parameter("insecure") + f" must be True or False, got {shortened(self.insecure)}")

    @property
    def given(self) -> list[str]:
        """Names of the fields that are set."""
        return [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]

    def or_environment(self) -> "Access":
        """Returns this access, with the environment's values for fields that are not set."""
        found: dict[str, str | bool] = {}
        for name in ("ca", "cert", "key", "token_file"):
            value = os.environ.get(variable_of(name))
            if value and getattr(self, name) is None and not (name == "token_file" and self.token is not None):
                found[name] = value
        if not self.insecure:
            found["insecure"] = os.environ.get(variable_of("insecure"), "").lower() in ("1", "true", "yes", "on")
        return replace(self, **found)  # type: ignore[arg-type]


NO_ACCESS = Access()


def variable_of(argument: str) -> str:
    """Returns the environment variable of an argument."""
    return f"{_ENVIRONMENT}{argument.upper()}"


class Credentials:
    """What gRPC needs for some hosts, from an Access: credentials of channels, and the token with every call.

    Certificates are read for each new channel and the token's file for each call, so you may replace them at any time.

    Args:
        access: the certificates and tokens, with the environment's values filled in.
        hosts: the target's hosts, as `hosts_of` returns them.
        credentials: the credentials of a secure channel; None to make them from `access`.

    Raises:
        ValueError: a token would travel in plain text, a file cannot be read, or one is missing.
    """

    def __init__(
        self, access: Access, hosts: Sequence[str], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        is_unix = all(host.startswith(("unix:", "unix-abstract:")) for host in hosts)
        self.access = access
        self.uses_tls = credentials is None and access.ca is not None and not is_unix
        self._credentials = credentials
        if credentials is not None and (more := [name for name in ("ca", "cert", "key") if name in access.given]):
            raise ValueError(f"credentials and {more[0]} are both given; give one of them")
        if access.ca is None and (access.cert is not None or access.key is not None) and credentials is None:
            raise ValueError("cert and key need ca: there is no TLS without the CA of the server's certificate")
        if (access.cert is None) != (access.key is None):
            given, missing = ("key", "cert") if access.cert is None else ("cert", "key")
            raise ValueError(f"{given} needs {missing}: a certificate and its private key belong together")
        if self.uses_tls:
            self.channel_credentials()
        self._token = self._read_token()
        is_exposed = self._token and credentials is None and not self.uses_tls and not access.insecure
        if is_exposed and (remote := [host for host in hosts if not is_local(host)]):
            raise ValueError(
                f"the token would be sent to {shortened(remote[0])} in plain text: give ca=… (TLS), or "
                + parameter("insecure", True)
                + " where everyone on the way may read it"
            )

    @property
    def has_credentials(self) -> bool:
        """Whether gRPC's own credentials were given, instead of files of certificates."""
        return self._credentials is not None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to send with a call: the token, read again from its file."""
        if self.access.token_file is not None:
            with suppress(ValueError):  # the file is being replaced: the last token is used
                self._token = self._read_token()
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a new channel, from the files as they are now; None for plain text."""
        if not self.uses_tls:
            return self._credentials
        ca, cert, key = (_read(name, getattr(self.access, name)) for name in ("ca", "cert", "key"))
        if b"-----BEGIN CERTIFICATE-----" not in (ca or b""):
            raise ValueError(f"ca {self.access.ca} holds no certificate (PEM)")
        return grpc.ssl_channel_credentials(ca, key, cert)

    def open_channel(self, address: Address, options: Sequence[tuple[str, object]] = ()) -> grpc.Channel:
        """Returns a new channel; it connects when it is used."""
        if address.authority is not None:
            options = [*options, ("grpc.default_authority", address.authority)]
        if address.proxy is None:
            options = [*options, ("grpc.enable_http_proxy", 0)]
        else:
            options = [*options, ("grpc.http_proxy", address.proxy.url)]
        credentials = self.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(address.target, options)
        return grpc.secure_channel(address.target, credentials, options)

    def _read_token(self) -> str | None:
        """Returns the token, from its file if there is one; a ValueError if the file does not hold one word."""
        if self.access.token_file is None:
            return self.access.token
        text = (_read("token_file", self.access.token_file) or b"").decode("ascii", errors="replace").strip()
        if not text or len(text.split()) != 1 or "\ufffd" in text:
            raise ValueError(
                parameter("token_file") + f" {self.access.token_file} must hold one token and nothing else"
            )
        return text


def _read(name: str, path: str | Path | None) -> bytes | None:
    """Returns a file's content, None for no path; a ValueError with the argument's name if it cannot be read."""
    if path is None:
        return None
    try:
        return read_plain(path)
    except OSError as error:
        raise ValueError(f"{name} {path} cannot be read: {error.strerror}") from None
