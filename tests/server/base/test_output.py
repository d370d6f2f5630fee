"""Nobody who reads the log can stop a server: lines wait in a queue, and those without room are counted."""

import fcntl
import json
import logging
import os
import urllib.request
from contextlib import suppress

import pytest
from tests.warm import START_SECONDS, warm

from packhorse.client import connect
from packhorse.server.base import output
from packhorse.server.base.logs import JsonLines
from packhorse.server.base.output import LineHandler, Lines, LineStream


@pytest.fixture
def pipe():
    """A pipe that holds little: its reading end, which does not wait, and its writing end."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def read_lines(reading, wait_until, until):
    """What comes until a line holds a text."""
    data = b""

    def more():
        nonlocal data
        with suppress(BlockingIOError):
            data += os.read(reading, 1 << 20)
        return until in data and data.endswith(b"\n")

    wait_until(more)
    return data.decode().splitlines()


def test_lines_without_room_are_left_out_counted_and_told_of(pipe, monkeypatch, wait_until):
    monkeypatch.setattr(output, "MOST_LINES", 50)
    reading, writing = pipe
    lines = Lines(writing)
    handler = LineHandler(lines)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("packhorse.test")
    logger.addHandler(handler)
    for number in range(1000):
        logger.info("line %d of many", number)
    assert 500 < lines.num_left_out < 1000
    lines.flush(0.01)  # the end of a process does not wait either
    logger.handlers[0].lines.flush(0.0)
    read = read_lines(reading, wait_until, b"line 49 of many")
    logger.info("the last")
    read += read_lines(reading, wait_until, b"the last")
    told = [json.loads(line) for line in read]
    assert [line["message"] for line in told[:3]] == ["line 0 of many", "line 1 of many", "line 2 of many"]
    assert told[-1]["message"] == "the last"
    notes = [line["message"] for line in told if "left out here: nobody read in time" in line["message"]]
    assert sum(int(note.partition(" ")[0]) for note in notes) == lines.num_left_out
    assert len(told) - len(notes) == 1001 - lines.num_left_out


def test_what_others_print_keeps_its_lines(pipe, wait_until):
    reading, writing = pipe
    stream = LineStream(Lines(writing), writing)
    print("a warning", "of two words", file=stream)
    stream.write("half a ")
    stream.write("line\nand more")
    stream.flush()
    assert read_lines(reading, wait_until, b"half") == ["a warning of two words", "half a line"]
    assert stream.fileno() == writing


def test_a_closed_pipe_is_counted_and_not_raised(wait_until):
    reading, writing = os.pipe()
    os.close(reading)
    lines = Lines(writing)
    lines.put("for nobody")
    wait_until(lambda: lines.num_left_out == 1)
    os.close(writing)


@pytest.fixture
def unread(tmp_path, corpus):
    """Function: starts a server whose stdout and stderr are a pipe; returns the process, what it said, and the pipe."""
    os.mkfifo(tmp_path / "log")
    reading = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
    started = []

    def start(*flags):
        arguments = ("--data-root", str(corpus.root), "--listen", "127.0.0.1:0", *flags)
        started.append(warm().serve(*arguments, log_path=tmp_path / "log", environment=os.environ | {}))
        return started[0], reading

    yield start
    os.close(reading)
    for process in started:
        process.send_signal(9)


def test_a_server_whose_log_nobody_reads_serves_tells_its_health_and_ends(unread, corpus, wait_until):
    process, reading = unread("--log-level", "debug", "--metrics-listen", "127.0.0.1:0", "--grace-seconds", "5")
    said = read_lines(reading, lambda condition: wait_until(condition, START_SECONDS), b"listening on ")
    facts = dict(line.removeprefix("packhorse: ").rsplit(" ", 1) for line in said if line.startswith("packhorse: "))
    target, metrics = facts["listening on"], facts["metrics at"]
    with connect(target) as client:  # from here on nobody reads
        for _ in range(300):  # a line each
            client.get_bins("few", positions=[0])
        assert sum(len(block.ids) for block in client.stream_bins("rows")) == 2000
        with urllib.request.urlopen(metrics.replace("/metrics", "/healthz"), timeout=20) as answer:
            assert answer.read() == b"SERVING\n"
        with urllib.request.urlopen(metrics, timeout=20) as answer:
            assert "packhorse_log_lines_left_out_total" in answer.read().decode()
    process.send_signal(15)
    assert process.wait(30) == 0
