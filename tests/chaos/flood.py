"""Floods of HTTP/2 frames from strangers without a certificate or token: cheap to send, and costly to answer.

Owns the floods: their connections go to loopback only, and end by themselves.
`python tests/chaos/flood.py HOST:PORT 16 10 KIND [tls]` floods by itself.
"""

import contextlib
import itertools
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tests.chaos.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, literals, message, reset

PING, WINDOW_UPDATE, CONTINUATION = 6, 8, 9
MOST_SECONDS = 120.0
"""No flood lasts longer."""

_REQUEST = literals(
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/packhorse.v1.PackingService/ListDatasets"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
_LARGE = _REQUEST + literals(*[(f"k{i}", "v" * 100) for i in range(245)])
"""26 kB: below the limit of gRPC's headers, which it refuses only once it has read them all."""
_FRAME_BYTES = 16_384


def _endless_headers():
    """A header block that never ends (CONTINUATION), each frame of new bytes for the table of RFC 7541."""
    yield frame(HEADERS, 0, 1, _REQUEST)
    block = b"".join(frame(CONTINUATION, 0, 1, literals(*[(f"k{i}", "v" * 100)] * 140)) for i in range(4))
    yield from itertools.repeat(block)


def _large_headers():
    """Requests with finished header blocks of 26 kB."""
    for stream in itertools.count(1, 2):
        first, rest = _LARGE[:_FRAME_BYTES], _LARGE[_FRAME_BYTES:]
        yield frame(HEADERS, END_STREAM, stream, first) + frame(CONTINUATION, END_HEADERS, stream, rest)


def _resets(body=b""):
    """Requests that are cancelled at once (rapid reset), after their message or before it."""
    cancel = reset(8)
    for first in itertools.count(1, 60):
        yield b"".join(
            frame(HEADERS, END_HEADERS, stream, _REQUEST)
            + (frame(DATA, 0, stream, body) if body else b"")
            + cancel(stream)
            for stream in range(first, first + 60, 2)
        )


KINDS = {
    "CONTINUATION": _endless_headers,
    "large headers": _large_headers,
    "RST_STREAM": _resets,
    "RST_STREAM after DATA": lambda: _resets(message(b"")),
    "SETTINGS": lambda: itertools.repeat(frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") * 500),
    "PING": lambda: itertools.repeat(frame(PING, 0, 0, bytes(8)) * 500),
    "WINDOW_UPDATE": lambda: itertools.repeat(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 500),
}
"""Name → makes the pieces that a connection sends after its preface."""


def flood(target, num_connections, seconds, kind, *, tls=False):
    """Floods a server from so many connections; one that the server ends is opened again.

    Args:
        target: HOST:PORT of loopback.
        num_connections: at once.
        seconds: after which all of it ends.
        kind: of KINDS.
        tls: whether to speak TLS, without a certificate and whatever the server's is.

    Returns:
        (bytes sent, connections that the server ended).
    """
    host, port = target.rsplit(":", 1)
    host = host.strip("[]")
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(f"a flood goes to loopback only, not to {host}")
    deadline = time.monotonic() + min(seconds, MOST_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    sent, ended = [0] * num_connections, [0] * num_connections

    def run(number):
        while (left := deadline - time.monotonic()) > 0:
            try:
                plain = socket.create_connection((host, int(port)), timeout=left)
                with context.wrap_socket(plain) if tls else plain as peer:
                    peer.sendall(PREFACE + frame(SETTINGS, 0, 0))
                    for piece in KINDS[kind]():
                        if time.monotonic() >= deadline:
                            return
                        sent[number] += _send(peer, piece, deadline)
            except TimeoutError:
                return
            except OSError:
                ended[number] += 1
                time.sleep(0.02)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(num_connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
    return sum(sent), sum(ended)


def _send(peer, piece, deadline):
    """Sends a piece and drops what has come: a peer that is not read would stop reading."""
    peer.settimeout(0)
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
        while peer.recv(1 << 18) != b"":
            pass
        raise ConnectionResetError
    peer.settimeout(max(0.01, deadline - time.monotonic()))
    peer.sendall(piece)
    return len(piece)


@contextlib.contextmanager
def flooding(target, num_connections, seconds, kind, *, tls=False):
    """Floods from a process of its own as long as the block lasts, or so many seconds."""
    command = [sys.executable, __file__, target, str(num_connections), str(seconds), kind, *["tls"][:tls]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    num_bytes, num_ended = flood(
        sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], tls="tls" in sys.argv[5:]
    )
    print(f"{num_bytes / 1e6:.0f} MB sent, {num_ended} connections ended by the server")
