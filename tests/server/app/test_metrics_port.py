"""The port of the metrics, where the machine has no thread left."""

import threading
from socketserver import ThreadingMixIn

import pytest

from packhorse.server.app.metrics_port import MetricsServer


def test_a_connection_without_a_thread_gives_its_permit_back(monkeypatch):
    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadingMixIn, "process_request", no_thread)
    server = object.__new__(MetricsServer)
    server._permits = threading.BoundedSemaphore(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            server.process_request(None, None)
    assert server._permits.acquire(blocking=False)
