"""`--profile`: how a server is reached, from a file."""

import pytest


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Function: writes the file of profiles."""
    file = tmp_path / "profiles.toml"
    monkeypatch.setenv("PACKHORSE_PROFILES", str(file))
    return file.write_text


@pytest.mark.shelf
def test_a_profile_says_the_target(packhorse, profiles, running_server, monkeypatch):
    monkeypatch.setenv("PACKHORSE_TARGET", "127.0.0.1:1")
    profiles(f'[here]\ntarget = "{running_server.target}"\n[away]\ntarget = "127.0.0.1:1"\n')
    health = ("doctor", "--health", "--profile")
    assert packhorse(*health, "here").stdout == f"{running_server.target}: SERVING\n"
    assert "127.0.0.1:1" in packhorse(*health, "away").stderr
    flags_first = packhorse(*health, "away", "--target", running_server.target)
    assert flags_first.stdout == f"{running_server.target}: SERVING\n"
    monkeypatch.setenv("PACKHORSE_PROFILE", "here")
    assert packhorse("stream", "few", "--limit", 1).exit_code == 0


def test_a_path_is_relative_to_the_file(packhorse, profiles, running_server, tmp_path):
    profiles(f'[here]\ntarget = "{running_server.target}"\nca = "no.pem"\n')
    assert str(tmp_path / "no.pem") in packhorse("stream", "few", "--profile", "here").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no "),
        ("[", "cannot be read as TOML"),
        ("[there]", "has no profile 'here'; it has there"),
        ("", "has no profile 'here'; it has none"),
        ("[here]\ntokenfile = 'x'", "[here] has the key 'tokenfile'; did you mean token_file?"),
        ("[here]\nretries = 3", "[here] has the key 'retries'; a profile has target, ca, cert, key, token_file"),
        ("[here]\ninsecure = 'yes'", "[here] insecure must be true or false, got 'yes'"),
        ("[here]\ntimeout_seconds = true", "[here] timeout_seconds must be a number of seconds, got True"),
        ("[here]\ntarget = 50051", "[here] target must be text, got 50051"),
    ],
)
def test_what_is_wrong_is_named(packhorse, profiles, text, message):
    if text is not None:
        profiles(text)
    result = packhorse("stream", "few", "--profile", "here")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "profiles.toml" in result.stderr
