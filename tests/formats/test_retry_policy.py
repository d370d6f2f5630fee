"""What is remote and does not answer: few lines, an end that the user sets, and a name for what is missing."""

import logging
import os
import socket
import threading

import pytest
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.formats.object_store import Store, StoreOptions, TokenStoreError
from packhorse.formats.object_store import attempts as store_attempts
from packhorse.formats.object_store.attempts import StoreAttempts
from packhorse.formats.object_store.failures import is_unreached
from packhorse.formats.retry_policy import TIMEOUT_VARIABLE, RetryPolicy, default_retry


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store_attempts, "time", clock)
    return clock


@pytest.mark.parametrize(("is_known", "seconds"), [(False, 10), (True, 120)])
def test_an_address_that_has_never_answered_is_given_up_soon_and_in_few_lines(
    clock: Clock, caplog: pytest.LogCaptureFixture, is_known: bool, seconds: float
) -> None:
    began = clock.now
    attempts = StoreAttempts(RetryPolicy(), "hf://x")
    attempts._began = began
    while attempts.wait_for_next("size", "nobody", is_known=is_known):
        assert clock.now - began < seconds
    assert clock.now - began > seconds - 5.1
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(lines) <= seconds / 5 + 1 < attempts.failures + seconds / 5
    assert "hf://x: size failed (nobody)" in lines[0].getMessage()


def test_a_slow_answer_is_spoken_of_before_it_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_attempts, "_QUIET_SECONDS", 0.01)
    held = threading.Event()
    attempts = StoreAttempts(RetryPolicy(), "s3://x")
    with pytest.raises(TimeoutError, match="no answer within"):
        attempts.within(0.05, held.wait)
    held.set()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["s3"]
    assert "no answer for" in caplog.text


def test_nothing_is_said_of_waiting_on_when_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    held = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within"):
        StoreAttempts(RetryPolicy(), "s3://x").within(0.05, held.wait)
    held.set()
    assert not caplog.records


def test_an_attempt_takes_no_more_than_what_is_left(clock: Clock) -> None:
    attempts = StoreAttempts(RetryPolicy(deadline_seconds=20), "s3://x")
    attempts._began = clock.now
    assert attempts.attempt_seconds(30) == 20
    clock.now += 15
    assert attempts.attempt_seconds(30) == 5
    clock.now += 15
    assert attempts.attempt_seconds(30) == 1
    assert StoreAttempts(RetryPolicy(deadline_seconds=0), "s3://x").attempt_seconds(30) == 30


def test_who_is_not_there_is_told_from_who_is_slow() -> None:
    class ConnectError(Exception):
        pass

    def caused() -> Exception:
        try:
            raise RuntimeError("it failed") from socket.gaierror(-2, "Name or service not known")
        except RuntimeError as error:
            return error

    assert is_unreached(ConnectError())
    assert is_unreached(caused())
    assert is_unreached(ConnectionRefusedError())
    assert not is_unreached(ConnectionResetError())
    assert not is_unreached(TimeoutError())


def test_the_environment_sets_the_time_of_whoever_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_retry() == RetryPolicy()
    monkeypatch.setenv(TIMEOUT_VARIABLE, "3.5")
    assert StoreOptions().retry == RetryPolicy(deadline_seconds=3.5, connect_seconds=3.5)
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv(TIMEOUT_VARIABLE, wrong)
        with pytest.raises(ValueError, match=f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got '{wrong}'"):
            StoreOptions()


def test_a_host_that_is_not_there_ends_a_command_in_time(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("requests")
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    flags = ["--max-seq-len", "8", "--output", str(tmp_path / "o"), "--timeout-seconds", "0.5"]
    result = CliRunner().invoke(main, ["prepare", "--input", "webhdfs://127.0.0.1:9/x.parquet", *flags])
    assert result.exit_code == 1
    assert "webhdfs://127.0.0.1:9/x.parquet: no answer in" in result.stderr
    assert "--timeout-seconds" in result.stderr
    assert TIMEOUT_VARIABLE not in os.environ


@pytest.mark.parametrize(("url", "package"), [("xyz://a/b", "packhorse\\[stores\\]"), ("oci://a/b", "ocifs")])
def test_an_unknown_protocol_is_refused_at_once_with_what_to_install(url: str, package: str) -> None:
    with pytest.raises((ValueError, ImportError), match=f"{url}: .*{package}"):
        Store(url).look()


def test_a_store_that_has_answered_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("memory://there/x", StoreOptions(retry=RetryPolicy(deadline_seconds=9, connect_seconds=0)))
    failures = [ConnectionRefusedError("down")]

    def ask(*_: object) -> str:
        if failures:
            raise failures.pop()
        return "up"

    with pytest.raises(TokenStoreError, match="in 1 attempts"):
        store.request("answer", ask)
    assert store.request("answer", ask) == "up"
    failures.append(ConnectionRefusedError("down"))
    assert store.request("answer", ask) == "up"
