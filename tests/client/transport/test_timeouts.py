"""How long a client goes on without an answer is an argument, everywhere that connects."""

import io
import socket
import sys

import pytest
from tests.flat_words import packed_dataset
from tests.waiting import time_with

from packhorse.client import PackedDataset, RetryPolicy, Server, connect
from packhorse.client.errors import InvalidRequestError, ServerUnavailableError
from packhorse.client.transport import grpc_channels as _grpc
from packhorse.client.transport import retries as _retry
from packhorse.client.transport.retries import policy_of


@pytest.fixture
def nowhere(monkeypatch):
    """A port that nothing listens at, and that counts as new: an earlier test's server may have had it."""
    monkeypatch.setattr(_grpc, "_ANSWERED", set())
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def waits(monkeypatch):
    """A clock that only waiting moves; what is waited for."""
    now, waited = [0.0], []

    def sleep(seconds):
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(_retry, "time", time_with(monotonic=lambda: now[0], sleep=sleep))
    return waited


def test_a_first_connection_gives_up_sooner_than_a_lost_one():
    policy = policy_of(None, None)
    assert (policy.connect_seconds, policy.deadline_seconds) == (10, 120)
    for seconds in (0.5, 300):
        assert policy_of(seconds, None) == RetryPolicy(deadline_seconds=seconds, connect_seconds=seconds)
    assert policy_of(None, RetryPolicy(deadline_seconds=7)).deadline_seconds == 7


@pytest.mark.parametrize("options", [{"timeout_seconds": 2}, {"retry": RetryPolicy(deadline_seconds=2)}], ids=str)
def test_it_reaches_the_client_and_the_dataset(nowhere, waits, options):
    with (
        pytest.raises(ServerUnavailableError, match="is a server listening there"),
        connect(nowhere, **options) as client,
    ):
        client.get_dataset("corpus")
    assert 0 < sum(waits) <= 2
    waits.clear()
    dataset = packed_dataset(nowhere, "corpus", {0: [1]}, batch_size=1, rank=0, world_size=1, **options)
    with pytest.raises(Exception, match="is a server listening there"):
        next(iter(dataset))
    assert 0 < sum(waits) <= 2


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:50051", "50051", "127.0.0.1", "a:1 b:2", "a:1;b:2", "a:0", "a:99999", "", "a:1,,b:2"]
)
def test_what_can_never_work_is_refused_at_once(target, waits):
    with pytest.raises(InvalidRequestError, match=r"target: .* is no address; give HOST:PORT"):
        connect(target)
    assert not waits


def test_a_function_s_client_has_its_own(nowhere):
    with pytest.raises(ValueError, match="the target is a function, which makes its own client"):
        PackedDataset(Server(lambda: connect(nowhere), timeout_seconds=5), "corpus", {0: [1]}, batch_size=1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "begins"), [(Terminal(), "\r\x1b[2K"), (io.StringIO(), "")], ids=["terminal", "file"]
)
def test_waiting_is_one_line_on_a_terminal_and_plain_elsewhere(nowhere, monkeypatch, stream, begins):
    from packhorse.cli.shared.service import asking

    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(ServerUnavailableError), asking(nowhere, 0.4) as client:
        client.get_dataset("corpus")
    text = stream.getvalue()
    assert text.startswith(begins + nowhere)
    if begins:
        assert "\n" not in text
        assert text.endswith(begins)  # the line is taken away
    else:
        assert text.endswith("trying again for up to 0.4 s\n")
        assert text.count("\n") == 1
        assert "\x1b" not in text


@pytest.mark.shelf
@pytest.mark.parametrize("command", [["stream"], ["audit"], ["show"], ["doctor"]], ids=lambda command: command[0])
def test_commands_take_a_timeout(nowhere, command):
    from click.testing import CliRunner

    from packhorse.cli import main

    flags = ["--target", nowhere, "--timeout-seconds", "0.3"]
    name = {"doctor": ["--health"], "show": ["corpus", "--id", "1"]}.get(command[0], ["corpus"])
    result = CliRunner().invoke(main, [*command, *flags, *name])
    assert result.exit_code == 1
    assert nowhere in result.stderr
    assert result.stderr.count("\n") <= 2
    for wrong in ("0", "-1", "nan", "soon"):
        result = CliRunner().invoke(main, [*command, *flags[:3], wrong, *name])
        assert result.exit_code in (1, 2)
        assert "timeout" in result.stderr
