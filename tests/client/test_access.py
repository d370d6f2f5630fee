"""`Access`: what contradicts itself is refused, the environment fills gaps, and nothing prints a token."""

import pickle
import re

import pytest

from packhorse.client import Access, MemoryDatasets, Server, connect
from packhorse.wire import is_local


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cert": "c.pem", "key": "k.pem"}, "cert and key need ca"),
        ({"ca": "missing.pem"}, "ca missing.pem cannot be read: No such file"),
        ({"ca": __file__}, "holds no certificate"),
        ({"ca": __file__, "cert": __file__}, "cert needs key"),
        ({"ca": __file__, "key": __file__}, "key needs cert"),
        ({"token": "a", "token_file": "b"}, "are both given; give token_file"),
        ({"token": ""}, "token must be a text"),
        ({"token_file": "missing"}, "token_file missing cannot be read"),
        ({"token_file": __file__}, "must hold one token and nothing else"),
        ({"ca": 7}, "ca must be the path of a file, got 7"),
        ({"insecure": "yes"}, "insecure must be True or False"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        connect("127.0.0.1:50051", **arguments)


def test_targets_without_a_server_take_no_certificates(corpus, monkeypatch):
    for target in (f"embedded:{corpus.root}", MemoryDatasets({"a": [1, 2]}, max_seq_len=4)):
        with pytest.raises(ValueError, match=r"ca is for a server, and .* has none"):
            connect(target, ca="ca.pem")
    monkeypatch.setenv("PACKHORSE_CLIENT_CA", "missing.pem")
    with connect(f"embedded:{corpus.root}") as client:
        assert client.get_dataset("few").num_sequences == 7
    with pytest.raises(ValueError, match=r"ca missing\.pem cannot be read"):
        connect("127.0.0.1:50051")


def test_the_environment_fills_what_is_left_out(monkeypatch):
    for name, value in {"CA": "a", "CERT": "b", "KEY": "c", "TOKEN_FILE": "d", "INSECURE": "1"}.items():
        monkeypatch.setenv(f"PACKHORSE_CLIENT_{name}", value)
    assert Access().or_environment() == Access(ca="a", cert="b", key="c", token_file="d", insecure=True)
    assert Access(ca="x", token="t").or_environment() == Access(ca="x", cert="b", key="c", token="t", insecure=True)


def test_nothing_prints_a_token():
    access = Access(token="s3cret")
    assert "s3cret" not in repr(access) + str(access)
    assert pickle.loads(pickle.dumps(access)).token == "s3cret"
    assert "s3cret" not in repr(connect("127.0.0.1:1", token="s3cret"))


def test_a_server_takes_an_access_and_nothing_else():
    with pytest.raises(ValueError, match=r"access must be an Access, e\.g\. Access\(ca='ca\.pem'\), got 'ca\.pem'"):
        Server("127.0.0.1:1", access="ca.pem")
    with pytest.raises(ValueError, match="the target is a function, which makes its own client"):
        Server(lambda: None, access=Access())


def test_which_addresses_stay_on_the_machine():
    local = [
        "127.0.0.1:5",
        "127.9.9.9:5",
        "[::1]:5",
        "::1",
        "localhost:5",
        "localhost",
        "unix:/run/s",
        "unix-abstract:s",
    ]
    remote = ["0.0.0.0:5", "[::]:5", "10.0.0.1:5", "trainer:5", "localhost.example.com:5", "127.0.0.1.nip.io:5", ""]
    assert [address for address in local if not is_local(address)] == []
    assert [address for address in remote if is_local(address)] == []
