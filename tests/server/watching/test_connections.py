"""Connections, as the kernel tells of them: how many are silent, and who sends what is no request."""

import socket
from contextlib import closing, suppress

import pytest
from tests.waiting import time_with

from packhorse.server.base.machine import Resources
from packhorse.server.watching import connections as module
from packhorse.server.watching.calls import Call
from packhorse.server.watching.connections import FLOOD_BYTES_PER_SECOND, Connections
from packhorse.server.watching.metrics import Metrics
from packhorse.server.watching.process_metrics import ProcessMetrics


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request):
    """(address listened on, the client's end of a connection, the server's end)."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((request.param, 0))
        listening.listen()
        port = listening.getsockname()[1]
        with closing(socket.create_connection((request.param, port))) as ours, closing(listening.accept()[0]) as theirs:
            yield f"host:{port}", ours, theirs


def peer_of(end):
    host, port, *_ = end.getsockname()
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def test_bytes_beside_requests_are_counted(ends):
    address, ours, _ = ends
    connections = Connections()
    connections.count_at(address)
    connections.look()
    assert (connections.num_open, connections.num_without_request, connections.bytes_without_request) == (1, 1, 0)
    ours.sendall(bytes(100))
    connections.look()
    assert connections.bytes_without_request == 100
    call = Call("/m", peer=peer_of(ours), received_bytes=30)
    connections.began(call)
    ours.sendall(bytes(40))
    connections.look()
    assert (connections.num_without_request, connections.bytes_without_request) == (0, 110)
    connections.ended(call)
    connections.look()
    assert (connections.num_without_request, connections.bytes_without_request) == (0, 110)
    ours.close()
    ends[2].close()
    connections.look()
    assert (connections.num_open, connections.bytes_without_request) == (0, 110)
    assert not connections._message_bytes, "nothing is kept of connections that are closed"


def test_who_sends_a_flood_is_named(ends, caplog, monkeypatch):
    address, ours, theirs = ends
    now = [100.0]
    monkeypatch.setattr(module, "time", time_with(monotonic=lambda: now[0]))
    connections = Connections()
    connections.count_at(address)
    theirs.setblocking(False)
    for _ in range(FLOOD_BYTES_PER_SECOND // (64 << 10) + 1):
        ours.sendall(bytes(64 << 10))
        with suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
    now[0] += 1
    connections.look()
    (record,) = caplog.records
    assert record.getMessage() == "a connection sends bytes that belong to no request"
    assert record.packhorse_fields["peer"] == peer_of(ours)
    now[0] += 1
    connections.look()
    assert len(caplog.records) == 1


def test_looking_leaves_descriptors_as_they_are(ends):
    address, ours, theirs = ends
    connections = Connections()
    connections.count_at(address)
    connections.look()
    theirs.sendall(b"still open")
    assert ours.recv(100) == b"still open"
    assert theirs.gettimeout() is None


def test_a_unix_socket_has_connections_only(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as ours:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        ours.connect(str(tmp_path / "s"))
        theirs, _ = listening.accept()
        with theirs:
            connections = Connections()
            connections.count_at(f"unix:{tmp_path}/s")
            connections.look()
    assert (connections.num_open, connections.num_without_request) == (1, 0)


def test_mapped_files_are_not_memory_of_its_own(tmp_path):
    import mmap

    path, size = tmp_path / "pool", 64 << 20
    path.write_bytes(bytes(size))
    before = Resources.now().memory_bytes
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pool:
        assert sum(pool[:: mmap.PAGESIZE]) == 0  # every page is there
        assert Resources.now().memory_bytes < before + size // 2
    held = bytearray(size)
    assert Resources.now().memory_bytes > before + size // 2
    del held


def test_a_look_moves_metrics_and_the_answer_of_get_activity():
    metrics = Metrics(list)
    measuring = ProcessMetrics(metrics, Connections())
    assert measuring.activity().memory_bytes == 0
    measuring.measure()
    seconds = metrics.registry.get_sample_value("packhorse_processor_seconds_total")
    measuring.measure()
    assert metrics.registry.get_sample_value("packhorse_processor_seconds_total") >= seconds > 0
    assert metrics.registry.get_sample_value("packhorse_memory_bytes") == measuring.activity().memory_bytes > 0
    assert measuring.activity().open_files > 0
