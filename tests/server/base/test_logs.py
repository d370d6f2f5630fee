"""The log stays readable whatever clients break, and says who streams what."""

import json
import logging
import socket
import subprocess
import sys

import grpc
import pytest
from tests.chaos.http2 import GOAWAY, PREFACE, SETTINGS, expanding_metadata, frame
from tests.waiting import time_with

from packhorse.client import RetryPolicy, connect
from packhorse.client.errors import DatasetNotFoundError, InvalidRequestError, UnauthenticatedError
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token
from packhorse.server.base import log_limit, logs
from packhorse.server.base.log_limit import LineLimit
from packhorse.server.watching import call_log
from packhorse.server.watching.call_log import CallLog
from packhorse.server.watching.calls import Call
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc


def record(message, error=None):
    return logging.LogRecord("x", logging.ERROR, "", 0, message, (), (type(error), error, None) if error else None)


def test_a_traceback_becomes_a_line():
    line = record("Unexpected\n  File ...", ValueError("bad\nbytes"))
    assert LineLimit().filter(line)
    assert logging.Formatter().format(line) == "Unexpected (ValueError: bad)"


def test_few_lines_in_a_period_and_the_next_one_counts_the_others(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(log_limit, "time", time_with(monotonic=lambda: now[0]))
    sparing = LineLimit(most_lines=2, period_seconds=60)
    assert [sparing.filter(record("a")) for _ in range(1000)] == [True] * 2 + [False] * 998
    now[0] = 60
    line = record("b")
    assert sparing.filter(line)
    assert line.getMessage() == "b (998 similar lines left out before)"


def line_with(**values):
    found = record("opened")
    found.__dict__.update(logs.fields(**values))
    return found


def test_fields_in_text_are_words_and_nobody_s_field_looks_like_another():
    line = logs.TextLines().format(line_with(dataset="corpus", rank=0, why="a\nERROR x: rank=9", seconds=0.0012345))
    assert line.endswith('x: opened dataset=corpus rank=0 why="a\\nERROR x: rank=9" seconds=0.00123')
    assert "\n" not in line


def test_fields_that_others_choose_are_cut_and_empty_ones_left_out():
    line = json.loads(logs.JsonLines().format(line_with(dataset="x" * 10_000, token_name="", step=None, epoch=0)))
    assert len(line["dataset"]) < 400
    assert line.keys() == {"time", "level", "logger", "process", "message", "dataset", "epoch"}


def test_a_trace_is_one_line_of_json():
    try:
        raise ValueError("bad\nbytes")
    except ValueError as error:
        line = logs.JsonLines().format(
            logging.LogRecord(
                "x", logging.ERROR, "", 0, "incident %s", ("1f",), (type(error), error, error.__traceback__)
            )
        )
    assert "\n" not in line
    assert json.loads(line)["message"] == "incident 1f"
    assert json.loads(line)["trace"].endswith("ValueError: bad\nbytes")


@pytest.fixture(scope="module")
def logging_server(corpus, tmp_path_factory):
    """(target, folder with a token, function: the log's lines) of a server that logs all it can, as JSON."""
    folder = tmp_path_factory.mktemp("logging")
    token = new_token()
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"{Grant('team-a', hash_of(token))}\n")
    target = f"unix:{folder}/s"
    flags = {
        "data-root": corpus.root,
        "listen": target,
        "token-file": folder / "tokens",
        "log-format": "json",
        "log-level": "debug",
    }
    command = [sys.executable, "-m", "packhorse.cli", "serve", *(f"--{flag}={value}" for flag, value in flags.items())]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)

    def lines(message):
        written = (folder / "log").read_text()
        return [
            line
            for line in map(json.loads, written[: written.rfind("\n") + 1].splitlines())
            if line["message"] == message
        ]

    yield target, folder, lines
    server.kill()
    server.wait()


def test_a_stream_has_its_lines_and_a_call_its_own(logging_server, wait_until):
    target, folder, lines = logging_server
    (listening,) = wait_until(lambda: lines("listening"), seconds=120)
    assert listening["address"] == target
    assert "rows" in listening["datasets"]
    with connect(target, token_file=folder / "token", retry=RetryPolicy(deadline_seconds=0)) as client:
        topology = Topology(world_size=4, workers_per_rank=2)
        blocks = list(client.stream_bins("rows", epoch=5, rank=3, worker=1, topology=topology))
        (opened,), (ended,) = wait_until(
            lambda: lines("stream ended") and (lines("stream opened"), lines("stream ended"))
        )
        who = {"dataset": "rows", "epoch": 5, "rank": 3, "worker": 1, "token_name": "team-a", "method": "StreamBins"}
        assert who.items() <= opened.items()
        assert {**who, "stream": opened["stream"], "status": "OK", "blocks": len(blocks)}.items() <= ended.items()
        assert ended["seconds"] > 0
        with pytest.raises(InvalidRequestError), client.stream_bins("rows", rank=9) as stream:
            next(stream)
        with pytest.raises(DatasetNotFoundError):
            client.get_dataset("none")
    (refused,) = wait_until(lambda: lines("stream refused"))
    assert (refused["level"], refused["rank"], refused["status"]) == ("WARNING", 9, "INVALID_ARGUMENT")
    (asked,) = [line for line in wait_until(lambda: lines("call")) if line["method"] == "GetDataset"]
    assert (asked["level"], asked["dataset"], asked["status"]) == ("DEBUG", "none", "NOT_FOUND")


def test_a_stream_that_asks_for_nothing_was_not_refused(logging_server, wait_until):
    target, folder, lines = logging_server
    wait_until(lambda: lines("listening"), seconds=120)
    with grpc.insecure_channel(target) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        authorization = (("authorization", f"Bearer {(folder / 'token').read_text()}"),)
        assert list(stub.PackStream(iter([]), metadata=authorization, timeout=30)) == []
    (left,) = wait_until(lambda: lines("stream left before its first message"))
    assert (left["level"], left["method"]) == ("INFO", "PackStream")
    assert not [line for line in lines("stream refused") if line["status"] == "OK"]


def test_no_secret_is_logged(logging_server, wait_until):
    target, folder, lines = logging_server
    wait_until(lambda: lines("listening"), seconds=120)
    stranger = new_token()
    with connect(target, token=stranger, retry=RetryPolicy(deadline_seconds=0)) as client:
        with pytest.raises(UnauthenticatedError):
            client.get_dataset("rows")
        with pytest.raises(UnauthenticatedError):
            next(client.stream_bins("rows"))
    wait_until(lambda: any(line["status"] == "UNAUTHENTICATED" for line in lines("call")))
    written = (folder / "log").read_text()
    for secret in (stranger, (folder / "token").read_text(), hash_of(stranger), "sha256:", "authorization"):
        assert secret not in written


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(100 * frame(GOAWAY, 0, 0, bytes(8) + b"A" * 15_000), id="goaway"),
        pytest.param(b"".join(expanding_metadata(2 * n + 1) for n in range(20)), id="metadata"),
    ],
)
def test_strangers_cannot_write_to_the_log_past_its_form_and_limits(logging_server, wait_until, frames):
    target, folder, lines = logging_server
    wait_until(lambda: lines("listening"), seconds=120)
    before = (folder / "log").stat().st_size
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(target.removeprefix("unix:"))
        stranger.sendall(PREFACE + frame(SETTINGS, 0, 0) + frames)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 16):
            pass
    with (
        connect(target, token=new_token(), retry=RetryPolicy(deadline_seconds=0)) as client,
        pytest.raises(UnauthenticatedError),
    ):
        client.get_dataset("rows")
    wait_until(lambda: (folder / "log").stat().st_size > before)
    assert not [line for line in (folder / "log").read_bytes()[before:].splitlines() if not line.startswith(b"{")]


def test_single_calls_are_not_logged_by_default(running_server, client, wait_until):
    client.get_dataset("rows")
    with client.stream_bins("few", epoch=77) as stream:
        next(stream)
    wait_until(lambda: "epoch=77" in running_server.log())
    assert "method=GetDataset" not in running_server.log()


def test_lines_of_streams_have_a_limit(caplog, monkeypatch):
    log = CallLog()
    monkeypatch.setitem(vars(call_log._STREAMS_LOG), "filters", [LineLimit(4)])
    call = Call("packhorse.v1.PackingService/StreamBins", request=pb.StreamBinsRequest(dataset="corpus"))
    call.num_sent = 1
    with caplog.at_level(logging.INFO, "packhorse"):
        for _ in range(100):
            log.sent(call, None, 0.0)
    assert [record.getMessage() for record in caplog.records] == ["stream opened"] * 4


def test_a_name_with_a_line_end_stays_in_its_line():
    assert "\n" not in logs.TextLines().format(record("not serving odd\nname"))
