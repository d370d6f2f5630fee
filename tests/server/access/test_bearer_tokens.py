"""Token files: what a line may say, what is refused and how, and that nothing tells a secret."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.waiting import time_with

from packhorse.server.access import bearer_tokens as tokens_module
from packhorse.server.access.bearer_tokens import (
    GONE_SECONDS,
    METHODS,
    MOST_TOKENS,
    Grant,
    TokenFile,
    hash_of,
    new_token,
)
from packhorse.server.base.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb

TOKEN = "packhorse_" + 43 * "x"  # the same in every worker of pytest, whose names of tests hold it
HASH = hash_of(TOKEN)


@pytest.fixture(autouse=True)
def _looks_every_time(monkeypatch):
    monkeypatch.setattr("packhorse.server.access.bearer_tokens.FRESH_SECONDS", 0.0)


@pytest.fixture
def tokens(tmp_path):
    """Function: a TokenFile of these lines."""

    def make(*lines):
        path = tmp_path / "tokens"
        path.write_text("\n".join(lines) + "\n")
        return TokenFile(path)

    return make


def refusal(tokens, authorization):
    with pytest.raises(ServiceError) as caught:
        tokens.grant_of(authorization)
    assert caught.value.reason == pb.ERROR_REASON_UNAUTHENTICATED
    assert TOKEN not in str(caught.value)
    return caught.value.metadata["cause"]


def test_tokens_are_random_and_kept_as_hashes():
    assert len({new_token() for _ in range(100)}) == 100
    assert re.fullmatch(r"packhorse_[\w-]{43}", new_token())
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", HASH)
    assert TOKEN not in str(Grant("a", HASH))


def test_lines_are_read_as_they_are_written():
    end = datetime(2031, 5, 1, 12, tzinfo=UTC)
    grant = Grant("team-a", HASH, ("corpus*", "books"), ("StreamBins", "Get*"), end)
    assert Grant.parse(str(grant)) == grant
    assert Grant.parse(f"a {HASH}") == Grant("a", HASH)
    assert Grant.parse(f"a {HASH} expires=2031-05-01T14:00:00+02:00").expires == end


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("team-a", "has no hash"),
        ("te/am " + HASH, "name must be"),
        ("a " + TOKEN, "hash of a must be sha256:"),
        (f"a {HASH} dataset=x", "must be datasets=…, methods=… or expires=…"),
        (f"a {HASH} datasets=", "datasets of a must be patterns"),
        (f"a {HASH} datasets=x datasets=y", "each once"),
        (f"a {HASH} methods=StreamBin", "'StreamBin' matches no method; there are"),
        (f"a {HASH} expires=tomorrow", "expires must be a time such as"),
    ],
)
def test_lines_that_say_something_else_are_refused_without_telling_a_token(tokens, line, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        tokens("# first", f"b {HASH}", line)
    assert "token_file" in str(caught.value)
    assert "line 3" in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert HASH not in str(caught.value)


def test_files_without_tokens_with_too_many_or_with_one_name_twice_are_refused(tokens, tmp_path):
    for lines in ([], ["# none"], [f"n{number} {HASH}" for number in range(MOST_TOKENS + 1)]):
        with pytest.raises(ValueError, match="must hold 1 to 1,000 tokens"):
            tokens(*lines)
    with pytest.raises(ValueError, match="a second token is named a"):
        tokens(f"a {HASH}", f"a {HASH}")
    with pytest.raises(ValueError, match="cannot be read"):
        TokenFile(tmp_path / "missing")


def test_whose_token_it_is(tokens):
    other = new_token()
    file = tokens(f"a {HASH}", f"b {hash_of(other)}", f"old {hash_of('old')} expires=2020-01-01")
    assert file.grant_of(f"Bearer {TOKEN}").name == "a"
    assert file.grant_of(f"bearer {other}").name == "b"
    for nothing in (None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN):
        assert refusal(file, nothing) == "missing"
    for unknown in (f"Bearer {TOKEN}x", f"Bearer {HASH}", "Bearer é"):
        assert refusal(file, unknown) == "unknown"
    assert refusal(file, "Bearer old") == "expired"


def test_a_file_that_changes_is_read_again_and_a_broken_one_is_not(tokens, tmp_path, caplog):
    file = tokens(f"a {HASH}")
    granted = file.grant_of(f"Bearer {TOKEN}")
    file.check_again(granted)
    (tmp_path / "tokens").write_text(f"a {HASH} nonsense\n")
    file.check_again(granted)
    assert "stays in use" in caplog.text
    assert HASH not in caplog.text
    (tmp_path / "tokens").write_text(f"a {HASH} datasets=few\n")
    with pytest.raises(ServiceError, match="withdrawn or changed"):
        file.check_again(granted)
    assert not file.grant_of(f"Bearer {TOKEN}").allows_dataset("rows")


@pytest.mark.parametrize("gone", ["deleted", "emptied", "comments only"])
def test_a_file_that_is_gone_withdraws_every_token_after_a_moment(tokens, tmp_path, caplog, monkeypatch, gone):
    now = [100.0]
    monkeypatch.setattr(tokens_module, "time", time_with(monotonic=lambda: now[0]))
    file = tokens(f"a {HASH}")
    granted = file.grant_of(f"Bearer {TOKEN}")
    path = tmp_path / "tokens"
    path.unlink() if gone == "deleted" else path.write_text("# nobody\n" if gone == "comments only" else "")
    file.check_again(granted)  # an editor may be at it
    assert f"for {GONE_SECONDS:g} s, no token is accepted" in caplog.text
    now[0] += GONE_SECONDS
    with pytest.raises(ServiceError, match="withdrawn or changed"):
        file.check_again(granted)
    assert refusal(file, f"Bearer {TOKEN}") == "unknown"
    assert file.trouble.endswith("no token is accepted")
    assert caplog.text.count("no token is accepted\n") == 2  # when it went, and when it counted
    path.write_text(f"a {HASH}\nb {hash_of('b')}\n")
    file.check_again(granted)
    assert not file.trouble


def test_a_file_that_is_back_soon_withdraws_nothing(tokens, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(tokens_module, "time", time_with(monotonic=lambda: now[0]))
    file = tokens(f"a {HASH}")
    (tmp_path / "tokens").unlink()
    granted = file.grant_of(f"Bearer {TOKEN}")
    (tmp_path / "tokens").write_text(f"a {HASH}\n")
    now[0] += 10 * GONE_SECONDS
    file.check_again(granted)
    assert not file.trouble


def test_a_file_beyond_a_size_is_refused_unread(tokens, tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # reading it would fill the memory
    with pytest.raises(ValueError, match=r"token_file .*large is larger than 1 MiB"):
        TokenFile(tmp_path / "large")


def test_a_grant_ends_while_it_is_used(tokens):
    file = tokens(f"a {HASH}")
    over = Grant("a", HASH, expires=datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(ServiceError, match="expired meanwhile"):
        file.check_again(over)
    assert not Grant("a", HASH, expires=datetime.now(UTC) + timedelta(minutes=1)).has_expired


def test_no_pattern_stands_for_what_changes_something():
    for methods in (("*",), ("Append*",), ("AppendStag?", "GetBins")):
        with pytest.raises(ServiceError, match="is not for AppendStage"):
            Grant("a", HASH, methods=methods).check_method("AppendStage")
    Grant("a", HASH, methods=("Get*", "AppendStage")).check_method("AppendStage")


def test_scopes():
    grant = Grant("a", HASH, ("corpus*",), ("Get*",))
    assert [method for method in METHODS if method.startswith("Get")] == ["GetDataset", "GetBins", "GetActivity"]
    grant.check_method("GetBins")
    grant.check_dataset("corpus-v2")
    for check, what, cause in (
        (grant.check_method, "StreamBins", "method"),
        (grant.check_dataset, "Corpus", "dataset"),
        (grant.check_dataset, "", "dataset"),
    ):
        with pytest.raises(ServiceError) as caught:
            check(what)
        assert (caught.value.reason, caught.value.metadata) == (pb.ERROR_REASON_ACCESS_DENIED, {"cause": cause})
