"""From a target to the addresses of its replicas.

Owns which targets are refused because they can never work, and names that stand for several hosts. Leaves connections
to `transport.grpc_channels`.
"""

import ipaddress
import os
import queue
import re
import socket
import threading
from dataclasses import dataclass

from packhorse.client.transport.requests import invalid, shortened

LOOKUP_SECONDS = 3.0
"""How long a name may take to become addresses; after that gRPC asks for it by itself."""

_MOST_SOCKET_BYTES = 107
"""Linux has 108 for a socket's path and the zero after it."""

_LEFT_TO_GRPC = ("unix:", "unix-abstract:", "vsock:", "xds:", "dns://")
_HOST_AND_PORT = re.compile(r"(?:dns:(?:///)?|ipv[46]:)?(\[[^\]\s]+\]|[^\s/:,\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where one replica listens."""

    target: str
    """As gRPC takes it."""
    authority: str | None = None
    """The host:port that the address was looked up from, which its certificate is for; None where `target` says it."""


def hosts_of(target: str) -> tuple[str, ...]:
    """Returns the hosts that a target lists: `a:1,b:2` gives `a:1` and `b:2`.

    Raises:
        InvalidRequestError: gRPC could never connect to it.
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
    """Returns every address of a host that `hosts_of` returned; the host itself where it has only one.

    A name with one address is left to gRPC, which also tries its IPv6 beside its IPv4.
    """
    if host.startswith(_LEFT_TO_GRPC):
        return [Address(host)]
    name, _, port = host.rpartition(":")
    if _is_literal(name):
        return [Address(host)]
    found = _looked_up(name)
    if len(found) < 2:
        return [Address(host)]
    return [Address(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", authority=host) for ip in found]


def host_and_port(address: Address) -> tuple[str, int, str] | None:
    """Returns the host to connect to, its port, and the name that its certificate is for; None for other addresses."""
    if address.target.startswith(_LEFT_TO_GRPC):
        return None
    host, _, port = address.target.rpartition(":")
    name = host if address.authority is None else address.authority.rpartition(":")[0]
    return host.strip("[]"), int(port), name.strip("[]")


def _check_socket(target: str) -> None:
    """Refuses the path of a socket that no system takes."""
    scheme, _, path = target.partition(":")
    size = len(os.fsencode(path.removeprefix("//")))
    if scheme in ("unix", "unix-abstract") and not 0 < size <= _MOST_SOCKET_BYTES:
        raise invalid(
            "target",
            f"the path of a unix socket has 1 to {_MOST_SOCKET_BYTES} bytes, and {shortened(target)} has {size}; "
            "give another, e.g. under /tmp",
        )


def _is_literal(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _looked_up(name: str) -> list[str]:
    """Returns a name's addresses of the family that this machine prefers; none where they are not known in time."""
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
