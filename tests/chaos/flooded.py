"""What eight reading streams, and health, keep of their speed while a server or its front is flooded.

Owns the front of deploy/haproxy and the measurement, for the tests beside it and for tests/benchmarks/bench_floods.py.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))

import flood
import pytest
from tests.servers import free_port
from tests.waiting import wait_until

from packhorse.client import PackhorseError

CONFIG = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
HEALTH_SECONDS = 20.0


class HealthProbe:
    """Asks for health over new connections, one after the other, as probes do, while the block lasts."""

    def __init__(self, target, access):
        self._target, self._access = target, access
        self.seconds = []
        """How long each answer took; HEALTH_SECONDS where none came."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self):
        ask_health = pytest.importorskip("packhorse.proof").ask_health
        while not self._stopping.wait(0.2):
            began = time.perf_counter()
            try:
                ask_health(self._target, access=self._access, timeout_seconds=HEALTH_SECONDS)
                self.seconds.append(time.perf_counter() - began)
            except PackhorseError:
                self.seconds.append(HEALTH_SECONDS)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join(2 * HEALTH_SECONDS)


class Front:
    """HAProxy as deploy/haproxy configures it, before one server.

    Args:
        server: HOST:PORT.
        pem: certificate and key.
    """

    def __init__(self, server, pem):
        self.target = f"127.0.0.1:{free_port()}"
        own = {"LISTEN": self.target, "CERT": str(pem), "SERVER": server}
        environment = os.environ | {f"FRONT_{name}": value for name, value in own.items()}
        self._process = subprocess.Popen(["haproxy", "-db", "-f", str(CONFIG)], env=environment)
        host, port = self.target.split(":")

        def listens():
            assert self._process.poll() is None, "HAProxy refuses its configuration"
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                return True
            return False

        wait_until(listens)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()


def share_under(readers, target, kind, num_connections, access, *, seconds=3.0, tls=False):
    """Returns (share of their rate that readers keep, the longest answer of health in seconds)."""
    readers.rate(0.5)
    before = readers.rate(seconds)
    with flood.flooding(target, num_connections, 60, kind, tls=tls):
        readers.rate(1)
        with HealthProbe(target, access) as probe:
            during = readers.rate(seconds)
    readers.rate(1)
    after = readers.rate(seconds)
    return 2 * during / (before + after), max(probe.seconds)
