"""Addresses of servers: the hosts that a target lists, and where each of their replicas listens.

Owns the form of targets (`hosts_of`) and the look-up of names (`addresses_of`). Leaves certificates and tokens to
`transport.access`, the choice of a proxy to `_proxies`, calls to `transport.grpc_channels`, and embedded targets to
`transport.embedded`.
"""

import ipaddress
import os
import queue
import re
import socket
import threading
from dataclasses import dataclass
from typing import NamedTuple

from packhorse.client.error_texts import invalid
from packhorse.client.transport._proxies import Proxy, proxy_for
from packhorse.topology.checks import quoted

LOOKUP_SECONDS = 3.0
"""Time to look up a name; after that gRPC does it."""

_MOST_SOCKET_BYTES = 107
"""The longest path of a socket: Linux has 108 bytes for it and the zero after it."""

_LEFT_TO_GRPC = ("unix:", "unix-abstract:", "vsock:", "xds:", "dns://")
"""How targets begin that only gRPC understands."""

_HOST_AND_PORT = re.compile(r"(?:dns:(?:///)?|ipv[46]:)?(?P<host>\[[^\]\s]+\]|[^\s/:,\[\]]+):(?P<port>\d{1,5})")
"""An entry of a target: `trainer-7:50051`, `[::1]:50051`, `dns:///trainer-7:50051`, `ipv4:10.0.0.7:50051`."""


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
        if match is None or not 0 < int(match["port"]) < 1 << 16:
            raise invalid(
                "target",
                f"{quoted(entry)} is no address; give HOST:PORT (several with commas), dns:///HOST:PORT, unix:PATH "
                "or embedded:DIR",
            )
        hosts.append(f"{match['host']}:{match['port']}")
    return tuple(hosts)


def addresses_of(host: str) -> list[Address]:
    """Returns an address for each IP address of a host; the host itself if it has only one or cannot be looked up.

    A host that is reached through a proxy is one address, because the proxy looks it up. It is reached directly if
    `no_proxy` lists its name, or if each of its IP addresses is listed or belongs to this machine.
    """
    is_left_to_grpc = host.startswith(_LEFT_TO_GRPC)
    if is_left_to_grpc and not host.startswith("dns://"):
        return [Address(host)]
    name, _, port = host.rpartition("/")[2].rpartition(":")  # host:port, or dns://nameserver/host:port
    proxy = proxy_for(name, port)
    if is_left_to_grpc:
        return [Address(host, proxy=proxy)]
    if _is_literal(name):
        return [Address(host, proxy=proxy)]
    ips = _looked_up(name)
    if ips and all(proxy_for(ip, port) is None for ip in ips):
        proxy = None
    if proxy is not None:
        return [Address(host, proxy=proxy)]
    if len(ips) < 2:
        return [Address(host)]
    return [Address(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", authority=host) for ip in ips]


def as_one_address(host: str) -> Address:
    """Returns a host as one address; gRPC looks its name up and tries every IP address."""
    name, _, port = host.rpartition(":")
    if proxy_for(name, port) is None:
        return Address(host)  # without a look-up, which may take seconds
    return Address(host, proxy=addresses_of(host)[0].proxy)  # none if `no_proxy` lists the IP addresses of the name


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
            f"the path of a unix socket has 1 to {_MOST_SOCKET_BYTES} bytes, and {quoted(target)} has {size}; "
            "take another, e.g. under /tmp",
        )


def _is_literal(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _looked_up(name: str) -> list[str]:
    """Returns a name's IP addresses, only IPv4 or only IPv6, as this machine prefers; none after `LOOKUP_SECONDS`."""
    answers: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def look_up() -> None:  # in a thread of its own, because getaddrinfo knows no timeout
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        preferred = next((family for family, *_ in found), None)
        answers.put([str(address[0]) for family, _, _, _, address in found if family == preferred])

    threading.Thread(target=look_up, daemon=True).start()
    try:
        return list(dict.fromkeys(answers.get(timeout=LOOKUP_SECONDS)))
    except queue.Empty:
        return []
