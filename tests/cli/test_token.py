"""`packhorse token new`: a line for the server, the token for its holder, once."""

import os
import resource
import stat

import pytest

from packhorse.cli.token import _append
from packhorse.server.access.bearer_tokens import TokenFile


def test_a_new_token_is_printed_once_and_kept_as_a_hash(packhorse, tmp_path):
    file = tmp_path / "tokens"
    before = os.umask(0)
    try:
        result = packhorse("token", "new", "team-a", "--token-file", file, "--datasets", "corpus*,books")
    finally:
        os.umask(before)
    assert result.exit_code == 0
    token = result.stdout.strip()
    assert "\n" not in token
    assert token not in file.read_text() + result.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    grant = TokenFile(file).grant_of(f"Bearer {token}")
    assert (grant.name, grant.datasets, grant.methods) == ("team-a", ("corpus*", "books"), ("*",))
    assert not grant.has_expired
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    other = packhorse(
        "token", "new", "b", "--token-file", file, "--expires", "never", "--methods", "Get*"
    ).stdout.strip()
    tokens = TokenFile(file)
    assert tokens.grant_of(f"Bearer {other}").expires is None
    assert tokens.grant_of(f"Bearer {token}") == grant
    assert other != token


def test_a_full_disk_costs_no_token_that_is_there(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("a line\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a part of the next line fits
    try:
        with pytest.raises(OSError, match="No space left on device"):
            _append(file, "another line\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "a line\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["team-a"], "already has a token named team-a"),
        (["b", "--methods", "Stream"], "'Stream' matches no method"),
        (["b", "--datasets", "a b"], "datasets of b must be patterns"),
        (["b", "--expires", "soon"], "expires must be a time such as"),
        (["b", "--expires", "2020-01-01"], "--expires 2020-01-01 is in the past"),
        (["a/b"], "name must be"),
    ],
)
def test_what_makes_no_token_changes_nothing(packhorse, tmp_path, arguments, message):
    file = tmp_path / "tokens"
    packhorse("token", "new", "team-a", "--token-file", file)
    before = file.read_text()
    result = packhorse("token", "new", *arguments, "--token-file", file)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (result.stdout, file.read_text()) == ("", before)
