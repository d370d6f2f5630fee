"""A flood of CONTINUATION frames: header blocks that never end, from strangers without a certificate or token.

Owns the flood: its connections go to loopback only, and end by themselves.
`python tests/chaos/flood.py HOST:PORT 16 10 [tls]` floods by itself.
"""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tests.chaos.http2 import HEADERS, PREFACE, SETTINGS, frame, literals

CONTINUATION = 9
MOST_SECONDS = 120.0
"""No flood lasts longer."""

_HEADER = literals((":method", "POST"), (":scheme", "http"), (":path", "/x"), (":authority", "x"))
_FRAMES = b"".join(frame(CONTINUATION, 0, 1, literals(*[(f"k{i}", "v" * 100)] * 140)) for i in range(4))
"""64 kB of headers that nobody asked for, each of new bytes for the table of RFC 7541."""


def flood(target, num_connections, seconds, *, tls=False):
    """Floods a server from so many connections; one that the server ends is opened again.

    Args:
        target: HOST:PORT of loopback.
        num_connections: at once.
        seconds: after which all of it ends.
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
                    peer.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, _HEADER))
                    while time.monotonic() < deadline:
                        peer.settimeout(max(0.01, deadline - time.monotonic()))
                        sent[number] += peer.send(_FRAMES)
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


@contextlib.contextmanager
def flooding(target, num_connections, seconds, *, tls=False):
    """Floods from a process of its own as long as the block lasts, or so many seconds."""
    command = [sys.executable, __file__, target, str(num_connections), str(seconds), *["tls"][:tls]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    num_bytes, num_ended = flood(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), tls="tls" in sys.argv)
    print(f"{num_bytes / 1e6:.0f} MB sent, {num_ended} connections ended by the server")
