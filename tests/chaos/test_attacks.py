"""Requests made to stop a server: eight streams go on, complete, and SIGTERM ends the process in time.

How much of their rate the streams keep is measured by tests/benchmarks/bench_attacks.py; here stands a floor.
"""

import contextlib
import socket
import threading
import time

import load
import numpy as np
import pytest
from tests.chaos.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    expanding_metadata,
    frame,
    literals,
    message,
)
from tests.waiting import wait_until

from packhorse.client import Access, PackhorseError, connect

pytestmark = pytest.mark.realtime

GRACE_SECONDS = 2
LEAST_SHARE = 0.25


@pytest.fixture(scope="module")
def server(attacked_root, make_server):
    with make_server(attacked_root, "--grace-seconds", GRACE_SECONDS) as server:
        yield server


SLOW = ("LocateSequences, 10,000 ids, a million ranks", "PackStream, 100,000 lengths in a message")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in load.ATTACKS]
)
def test_streams_go_on(server, name):
    attack, num_attackers = load.ATTACKS[name]
    with load.Readers(server.target) as readers, connect(server.target) as client:
        readers.rate(0.3)
        alone = readers.rate(0.5)
        with load.under(attack, server.target, num_attackers) as outcomes:
            readers.rate(0.5)
            during = readers.rate(0.8)
            for _ in range(4):  # another test may have had both processors meanwhile
                if during < LEAST_SHARE * alone:
                    during = readers.rate(1.5)
            client.get_dataset("many")
    print(f"{name}: {during / alone:.2f} of the rate; {outcomes}")
    assert not readers.failures
    assert readers.complete_epochs()
    for ids in readers.complete_epochs():
        assert (np.bincount(ids) == 1).all()
    assert during >= LEAST_SHARE * alone


def test_broken_calls_leave_few_lines_in_the_log(server):
    for attack in (load.send_junk, load.come_and_leave):
        with load.under(attack, server.target, 8) as outcomes:
            wait_until(lambda: sum(outcomes.values()) > 20)
    assert "Traceback" not in server.log()
    of_others = [line for line in server.log().splitlines() if "packhorse.server.watching.calls" not in line]
    assert len(of_others) < 30


def test_sigterm_ends_all_of_it_in_time(server):
    with contextlib.ExitStack() as attacks:
        for attack, num_attackers in load.ATTACKS.values():
            attacks.enter_context(load.under(attack, server.target, num_attackers))
        attacks.enter_context(load.under(load.get_large_bins_unread, server.target, 4))
        attacks.enter_context(load.under(load.stream_large_steps_unread, server.target, 4))
        time.sleep(2)
        server.terminate()
        assert server.wait(GRACE_SECONDS + 5) == 0


@pytest.mark.parametrize(
    "attack", [load.get_large_bins_unread, pytest.param(load.stream_large_steps_unread, marks=pytest.mark.long)]
)
def test_answers_that_nobody_reads_take_bounded_memory(attacked_root, make_server, memory_bytes, attack):
    """The budget is 512 MiB; what the allocator keeps beside it may be as much again. Unbounded it would be 5 GB."""
    with make_server(attacked_root, "--grace-seconds", GRACE_SECONDS) as server:
        before = memory_bytes(server.pid)
        with load.under(attack, server.target, 40):
            for _ in range(40):
                time.sleep(0.1)
                assert memory_bytes(server.pid) - before < 1 << 30
            with connect(server.target) as client:  # streams of common size need none of that budget
                assert sum(len(block.ids) for block in client.stream_bins("many")) == load.NUM_SEQUENCES
            server.terminate()
            assert server.wait(GRACE_SECONDS + 5) == 0


def test_metadata_that_expands_takes_bounded_memory(attacked_root, make_server, memory_bytes):
    """Each call keeps about half a megabyte until it ends, and this peer ends none: 2,000 would keep 1 GB."""
    with make_server(attacked_root) as server:
        before = memory_bytes(server.pid)
        host, port = server.target.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            reading = threading.Thread(target=_read_all, args=(stranger,))
            reading.start()
            stranger.sendall(PREFACE + frame(SETTINGS, 0, 0))
            for number in range(2000):
                stranger.sendall(expanding_metadata(2 * number + 1))
            stranger.shutdown(socket.SHUT_WR)
            reading.join(20)
        assert memory_bytes(server.pid) - before < 500 << 20
        with connect(server.target) as client:
            client.get_dataset("many")


def _read_all(peer):
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


@pytest.mark.long
@pytest.mark.parametrize("watching", [False, True], ids=["a preface only", "a watch of health"])
def test_idle_connections_lock_nobody_out(attacked_root, make_server, watching):
    """The server admits 260 connections beside 4 streams, and turns away every other as long as these stay."""
    call = literals(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Watch"),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    sent = PREFACE + frame(SETTINGS, 0, 0)
    if watching:
        sent += frame(HEADERS, END_HEADERS, 1, call) + frame(DATA, END_STREAM, 1, message(b""))
    with make_server(attacked_root, "--max-streams", 4) as server, contextlib.ExitStack() as strangers:
        with load.Readers(server.target, num_streams=2) as readers:
            wait_until(lambda: readers.num_sequences)
            host, port = server.target.rsplit(":", 1)
            for _ in range(270):
                stranger = strangers.enter_context(socket.create_connection((host, int(port)), timeout=20))
                with contextlib.suppress(OSError):
                    stranger.sendall(sent)
            wait_until(lambda: is_serving(server.target))
            assert "were without a call" in server.log()
        assert not readers.failures


@pytest.mark.long
def test_handshakes_that_are_left_half_done_lock_nobody_out(attacked_root, make_server, authority):
    """Such a connection has sent the begin of a ClientHello, or nothing: it never becomes one of HTTP/2."""
    issued = authority.issue("attacked")
    flags = ("--max-streams", 4, "--tls-cert", issued.cert, "--tls-key", issued.key)
    with make_server(attacked_root, *flags) as server, contextlib.ExitStack() as strangers:
        host, port = server.target.rsplit(":", 1)
        with connect(server.target, ca=authority.ca) as client, client.stream_bins("many") as stream:
            next(stream)
            for number in range(270):
                stranger = strangers.enter_context(socket.create_connection((host, int(port)), timeout=20))
                with contextlib.suppress(OSError):
                    stranger.sendall(b"\x16\x03\x01\x02\x00\x01" if number % 2 else b"")
            wait_until(lambda: is_serving(server.target, Access(ca=authority.ca)))
            assert len(next(stream))


def is_serving(target, access=None):
    ask_health = pytest.importorskip("packhorse.proof").ask_health
    with contextlib.suppress(PackhorseError):
        return ask_health(target, access=access or Access(), timeout_seconds=2) == "SERVING"
    return False
