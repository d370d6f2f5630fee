"""The HTTP proxy of a connection: which one the environment names, whether a host goes through it, and why it failed.

gRPC reads the same variables, but it compares `no_proxy` with its target, which is an IP address if the client has
looked the name up, and it sends even loopback connections to a proxy. So the choice is made here, by name, and passed
to gRPC as an option of the channel. Leaves looking up names to `addresses`, and channels to `replica`.
"""

import functools
import ipaddress
import logging
import os
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from urllib.parse import SplitResult, unquote, urlsplit

from packhorse.client.errors import AccessDeniedError, PackhorseError, ServerUnavailableError

_LOG = logging.getLogger(__name__)

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables that name a proxy, as gRPC reads them: the first that is set counts, and "" means none."""
EXEMPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
"""Variables that list hosts without a proxy; the first that is set counts."""

_DEFAULT_PORT = 80
"""The port of a proxy whose URL names none."""
_TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""HTTP statuses of a proxy that are temporary. Others from 400 to 499 are final."""
_STATUS = re.compile(r"(?:response code|Tunnel connection failed:) (\d{3})")
"""How gRPC and `http.client` report a proxy's answer to CONNECT."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that connections go through by CONNECT.

    Example:
        >>> print(Proxy("http_proxy", "http://user:secret@proxy:3128"))
        http://proxy:3128 (environment variable http_proxy)
    """

    variable: str
    """Environment variable that names the proxy."""
    url: str = field(repr=False)
    """The proxy's URL, possibly with a password."""

    def __str__(self) -> str:
        """Returns the URL without user and password, and the variable that it comes from."""
        url = urlsplit(self.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]} (environment variable {self.variable})"

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Returns a connection through the proxy, which looks the host up; an OSError if it fails."""
        url = urlsplit(self.url)
        headers = {}
        if url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        tunnel = HTTPConnection(url.hostname or "", url.port or _DEFAULT_PORT, timeout=seconds)
        tunnel.set_tunnel(host, port, headers)
        try:
            tunnel.connect()
        except HTTPException as error:
            raise OSError(f"it does not answer as an HTTP proxy: {error or type(error).__name__}") from None
        connection: socket.socket = tunnel.sock
        return connection

    def failure(self, host: str, text: str) -> PackhorseError:
        """Returns the exception for a connection that failed; it names the proxy.

        Args:
            host: the host:port that the client wanted to reach.
            text: what gRPC or the socket reported.
        """
        way = f"the connection goes through the proxy {self}"
        direct = f"if the server can be reached without it, add {host.rpartition(':')[0] or host} to no_proxy"
        found = _STATUS.search(text)
        status = None if found is None else int(found[1])
        if status is None or not 400 <= status < 500 or status in _TEMPORARY:
            return ServerUnavailableError(f"{text}; {way}: {direct}")
        why = "refuses"
        if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            why = f"wants a user and a password ({self.variable}=http://USER:PASSWORD@HOST:PORT)"
        return AccessDeniedError(f"{host}: {way}, which {why} (HTTP status {status}): {direct}", {"cause": "proxy"})


def proxy_for(name: str, port: str = "") -> Proxy | None:
    """Returns the proxy for a host, by its name or IP address as it is written; None for a direct connection.

    An entry of `no_proxy` is the end of a name (`.svc`, `*.cluster.local`, `trainer-7`), an address, a network
    (`10.0.0.0/8`), one of these with a port, or `*` for every host.

    Args:
        name: the host's name or IP address, IPv6 with or without brackets.
        port: the server's port; "" if it is not known.
    """
    proxy = _proxy_of_environment()
    name = name.strip("[]").rstrip(".").lower()
    if proxy is None or not name or _is_this_machine(name):
        return None
    if any(_matches(entry, name, port) for entry in _exempted()):
        return None
    return proxy


def connect(host: str, port: int, seconds: float, proxy: Proxy | None = None) -> socket.socket:
    """Returns a connection, through the proxy if one is given; an OSError if it takes longer than `seconds`."""
    return socket.create_connection((host, port), seconds) if proxy is None else proxy.connect(host, port, seconds)


def _proxy_of_environment() -> Proxy | None:
    """Returns the proxy that the environment names; None without one, or if gRPC cannot use its URL."""
    variable = next((name for name in VARIABLES if name in os.environ), None)
    if variable is None or not os.environ[variable]:
        return None
    proxy = Proxy(variable, os.environ[variable])
    url = _split(proxy.url)
    if url is None or url.scheme != "http" or not url.hostname:
        _warn_of_unusable(variable)
        return None
    return proxy


def _split(url: str) -> SplitResult | None:
    """Returns the parts of a URL; None if it cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed only now; a ValueError if it is no port
    except ValueError:
        return None
    return parts


@functools.cache
def _warn_of_unusable(variable: str) -> None:
    _LOG.warning("%s is not used: gRPC takes a proxy only as http://HOST:PORT", variable)


def _exempted() -> Iterator[str]:
    """Yields the entries of `no_proxy`, in small letters."""
    listed = next((os.environ[name] for name in EXEMPTIONS if name in os.environ), "")
    for entry in listed.split(","):
        if entry.strip():
            yield entry.strip().lower()


def _matches(entry: str, name: str, port: str) -> bool:
    """Whether an entry of `no_proxy` covers a host; see `proxy_for` for what an entry may be."""
    host, colon, port_of_entry = entry.rpartition(":")
    is_ipv6_address = ":" in host and not host.endswith("]")  # without brackets, so it ends in no port
    if colon and port_of_entry.isdecimal() and not is_ipv6_address:
        if port_of_entry != port:
            return False
        entry = host
    entry = entry.strip("[]")
    address = _address(name)
    if address is None:
        return name.endswith(entry.removeprefix("*"))  # of "*" nothing is left, and every name ends so
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:  # the entry is the end of a name, which covers no address, or "*"
        return not entry.strip("*")


def _is_this_machine(name: str) -> bool:
    """Whether a host is this machine, which needs no proxy."""
    address = _address(name)
    if address is None:  # a name
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns an IP address; None for a name. ::ffff:10.0.0.1 becomes 10.0.0.1, so that IPv4 networks cover it."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
