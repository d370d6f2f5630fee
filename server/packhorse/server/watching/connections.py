"""The connections to this process, looked at every few seconds.

Owns asking the kernel for the bytes that belong to no request: gRPC reports a call only when its headers are complete,
so it says nothing of a connection that sends headers without end. Also ends idle connections if others find no room.
Leaves the calls to `calls`, and asking again and again to `process_metrics`.
"""

import logging
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import suppress
from urllib.parse import quote

from packhorse.server.base.log_limit import LineLimit
from packhorse.server.base.logs import fields
from packhorse.server.base.machine import open_descriptors
from packhorse.server.watching.calls import Call, Watcher

_LOG = logging.getLogger(__name__)

FLOOD_BYTES_PER_SECOND = 2 << 20
"""Rate of bytes beside requests above which a connection is named in the log. Honest clients, which acknowledge what
they read, send a hundredth of that."""

CROWDED_SHARE = 0.75
"""Share of the connections that gRPC admits above which idle ones are ended. Otherwise gRPC would refuse new clients
and probes as long as idle connections are open."""

UNIX_PEER = "unix:"
"""The peer of every connection to a unix socket."""

_RECEIVED_BYTES = struct.Struct("@Q")
_RECEIVED_AT = 128
"""Offset in bytes of tcpi_bytes_received in `struct tcp_info` of Linux, since 4.1."""

_TCP_INFO_BYTES = 256  # more than the struct has


class Connections(Watcher):
    """Follows calls, and compares their bytes with the kernel's counts for the connections that they come over.

    `look` may run in a thread beside the event loop, which calls all other methods.

    Attributes:
        most_open: connections that gRPC admits at once; None for no limit.
        num_open: connections that were open at the last look.
        num_without_request: how many of these no request had come from; those of unix sockets are not counted.
        bytes_without_request: bytes received beside the messages of requests, over connections that were open at a
            look: handshakes, headers, acknowledgements and floods. Unknown for unix sockets.
    """

    def __init__(self) -> None:
        if not _LOG.filters:
            _LOG.addFilter(LineLimit())
        self.most_open: int | None = None
        self._idle_peers: set[str] = set()  # without a call at the last look
        self.num_open = self.num_without_request = self.bytes_without_request = 0
        self._address = ""
        self._calls: set[Call] = set()
        self._message_bytes: Counter[str] = Counter()  # peer → bytes of its calls that have ended
        self._beside_bytes: dict[str, int] = {}  # peer → bytes received beside requests, at the last look
        self._looked_at = time.monotonic()

    def count_at(self, address: str) -> None:
        """Sets the address whose connections are counted: HOST:PORT or unix:PATH."""
        self._address = address

    def began(self, call: Call) -> None:
        """Adds a call; its peer is known once its request has come."""
        self._calls.add(call)

    def ended(self, call: Call) -> None:
        """Adds the bytes of an ended call to those of its connection."""
        self._calls.discard(call)
        if call.peer:
            self._message_bytes[call.peer] += call.received_bytes

    def look(self) -> None:
        """Asks the kernel about every connection, in some milliseconds for a thousand; logs those that flood."""
        now = time.monotonic()
        period_seconds, self._looked_at = max(1.0, now - self._looked_at), now
        # Taken before the kernel is asked: those that it does not list are closed.
        known_peers = set(self._message_bytes)
        received = list(_open_connections(self._address))
        requested_bytes = Counter(dict(self._message_bytes))
        for call in list(self._calls):
            if call.peer:
                requested_bytes[call.peer] += call.received_bytes
        beside_bytes = {
            peer: max(0, num_bytes - requested_bytes[peer]) for peer, num_bytes in received if num_bytes is not None
        }
        self.num_open = len(received)
        self.num_without_request = sum(peer not in requested_bytes for peer in beside_bytes)
        for peer, num_bytes in beside_bytes.items():
            new_bytes = max(0, num_bytes - self._beside_bytes.get(peer, 0))
            self.bytes_without_request += new_bytes
            if new_bytes > FLOOD_BYTES_PER_SECOND * period_seconds:
                _LOG.warning(
                    "a connection sends bytes that belong to no request",
                    extra=fields(peer=peer, megabytes_per_second=round(new_bytes / 1e6 / period_seconds, 1)),
                )
        for peer in known_peers - beside_bytes.keys():
            self._message_bytes.pop(peer, None)
        self._beside_bytes = beside_bytes
        self._make_room(beside_bytes.keys())

    def _make_room(self, peers: Set[str]) -> None:
        """Ends connections that have been without a call since the last look, if too many connections are open.

        Calls of health do not count: they need no token, and a `Watch` may last for ever.
        """
        idle_peers = peers - {call.peer for call in list(self._calls) if call.is_ours}
        ending = idle_peers & self._idle_peers
        self._idle_peers = set(idle_peers)
        if self.most_open is None or self.num_open <= CROWDED_SHARE * self.most_open or not ending:
            return
        for peer, connection in _sockets(self._address):
            if peer in ending:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        _LOG.warning(
            "%d of %d connections were without a call, and were ended to make room for others",
            len(ending),
            self.num_open,
        )


def _open_connections(address: str) -> Iterator[tuple[str, int | None]]:
    """Yields the peer of each connection of this process to an address, as gRPC writes it, and its received bytes.

    The bytes are None if the system does not count them.
    """
    for peer, connection in _sockets(address):
        try:
            is_counted = peer != UNIX_PEER and sys.platform == "linux"
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES) if is_counted else b""
        except OSError:
            continue
        num_bytes = None
        if len(info) >= _RECEIVED_AT + _RECEIVED_BYTES.size:
            (num_bytes,) = _RECEIVED_BYTES.unpack_from(info, _RECEIVED_AT)
        yield peer, num_bytes


def _sockets(address: str) -> Iterator[tuple[str, socket.socket]]:
    """Yields each connection of this process to an address, with its peer as gRPC writes it.

    The descriptor belongs to gRPC: the caller may use it until it asks for the next one, and must not close it.
    """
    path = address.removeprefix("unix:") if address.startswith("unix:") else None
    family = socket.AF_INET6 if path is None else socket.AF_UNIX  # with AF_INET6, Python reads IPv4 addresses too
    port = None if path is not None or not address else int(address.rpartition(":")[2])
    for descriptor in open_descriptors():
        borrowed = None
        try:
            borrowed = socket.socket(family, socket.SOCK_STREAM, 0, fileno=descriptor)
            own_name = borrowed.getsockname()  # (host, port, …), or a path
            if isinstance(own_name, tuple) and own_name[1] == port:
                yield _peer_of(borrowed.getpeername()), borrowed
            elif path is not None and own_name == path:
                borrowed.getpeername()  # raises an OSError for the socket that listens
                yield UNIX_PEER, borrowed
        except OSError:  # the descriptor is no socket, a socket that listens, or closed by now
            continue
        finally:
            if borrowed is not None:
                borrowed.detach()


def _peer_of(name: tuple[str, int]) -> str:
    """Returns a peer as gRPC writes it.

    Example:
        >>> _peer_of(("10.0.0.7", 41212)), _peer_of(("::ffff:10.0.0.7", 41212)), _peer_of(("::1", 41212))
        ('ipv4:10.0.0.7:41212', 'ipv4:10.0.0.7:41212', 'ipv6:%5B::1%5D:41212')
    """
    host, port, *_ = name
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
