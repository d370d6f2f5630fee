"""Addresses: free ports, unix sockets left by the dead, and what cannot be listened on."""

import re
import socket
import urllib.request

import pytest
from tests import commands

from packhorse.client import connect
from packhorse.server.app.binding import check_socket
from packhorse.server.app.config import ServeConfig, split_address


@pytest.fixture
def serve(corpus):
    """Function: runs `serve` to its end; (exit status, output)."""

    def run(*flags, root=corpus.root):
        done = commands.run("serve", "--data-root", root, *flags)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_socket_of_a_killed_server_is_taken_over_and_one_in_use_is_not(corpus, make_server, serve, tmp_path):
    listen = f"unix:{tmp_path}/s"
    with make_server(corpus.root, listen=listen) as server, connect(listen) as client:
        assert server.target == listen
        assert client.get_dataset("few").num_sequences == 7
        server.kill()
        server.start()
        assert client.get_dataset("few").num_sequences == 7
        status, output = serve("--listen", listen)
        assert status == 1
        assert output == f"Error: --listen {listen}: the path is in use\n"
        assert client.get_dataset("few").num_sequences == 7


def test_only_dead_sockets_may_be_taken_over(tmp_path):
    file, dead, alive = tmp_path / "file", tmp_path / "dead", tmp_path / "alive"
    file.write_text("precious")
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(dead))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(alive))
        listening.listen()
        for path in (dead, tmp_path / "missing"):
            check_socket(path)
        for path in (file, alive, tmp_path):
            with pytest.raises(OSError, match=f"listen unix:{path}: the path is in use"):
                check_socket(path)
    assert file.read_text() == "precious"


def test_a_port_in_use_is_refused_in_one_line(running_server, serve):
    status, output = serve("--listen", running_server.target)
    assert status == 1
    assert f"Error: --listen {running_server.target}: the address is in use or cannot be listened on" in output
    assert "Traceback" not in output


def test_a_metrics_port_in_use_names_its_flag(running_server, serve):
    address = running_server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    status, output = serve("--listen", "127.0.0.1:0", "--metrics-listen", address)
    assert status == 1
    assert f"--metrics-listen {address}" in output
    assert "Traceback" not in output


def test_a_root_without_datasets_is_refused_in_one_line(serve, tmp_path):
    status, output = serve("--listen", "127.0.0.1:0", root=tmp_path)
    assert status == 1
    assert output.splitlines()[-1].startswith(f"Error: no prepared dataset below {tmp_path}")
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("listen", {"listen": "50051"}),
        ("listen", {"listen": "127.0.0.1:http"}),
        ("listen", {"listen": "127.0.0.1:65536"}),
        ("listen", {"listen": ":50051"}),
        ("listen", {"listen": "::1:50051"}),
        ("metrics_listen", {"metrics_listen": "localhost"}),
        ("grace_seconds", {"grace_seconds": -1}),
        ("grace_seconds", {"grace_seconds": float("nan")}),
        ("max_streams", {"max_streams": 0}),
    ],
)
def test_options_out_of_range_name_their_flag(tmp_path, flag, options):
    with pytest.raises(ValueError, match=f"^{flag} must (be|have)"):
        ServeConfig(data_root=tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listen": "0.0.0.0:1"}, "listen 0.0.0.0:1 must not be reached from other machines in plain text"),
        ({"listen": "[::]:1"}, "listen"),
        ({"listen": "trainer:1"}, "listen"),
        ({"metrics_listen": "10.0.0.1:1"}, "metrics_listen 10.0.0.1:1 must not be reached"),
        ({"listen": "0.0.0.0:1", "token_file": "t"}, "listen"),
        ({"tls_cert": "c"}, "tls_cert must be given together with tls_key"),
        ({"tls_key": "k"}, "tls_key must be given together with tls_cert"),
        ({"tls_client_ca": "ca"}, "tls_client_ca must be given together with"),
    ],
)
def test_plain_text_stays_on_the_machine_unless_told(tmp_path, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ServeConfig(data_root=tmp_path, **options)


def test_the_command_line_can_print_the_flags_that_need_each_other(tmp_path):
    with pytest.raises(ValueError, match="must be given together with") as caught:
        ServeConfig(data_root=tmp_path, tls_cert=tmp_path)
    said = caught.value.args[0].spelled(lambda each: f"<{each.name}>")
    assert said == "<tls_cert> must be given together with <tls_key>"


def test_what_may_be_listened_on(tmp_path):
    tls = {"tls_cert": tmp_path, "tls_key": tmp_path}
    for options in (
        {},
        {"listen": "unix:/s"},
        {"listen": "0.0.0.0:1", "insecure": True},
        {"listen": "0.0.0.0:1", **tls},
    ):
        assert ServeConfig(data_root=tmp_path, **options).reflection


def test_insecure_servers_say_so_and_certificates_that_are_none_end_them(corpus, make_server, serve, tmp_path):
    with make_server(corpus.root, "--insecure", listen="0.0.0.0:0") as server:
        assert "0.0.0.0:0 is plain text (--insecure): whoever reaches it can read and alter it" in server.log()
        with connect(server.target.replace("0.0.0.0", "127.0.0.1")) as client:
            assert client.get_dataset("few").num_sequences == 7
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for flags, message in (
        (("--listen", "0.0.0.0:0"), "Error: --listen 0.0.0.0:0 must not be reached"),
        (("--tls-cert", nothing, "--tls-key", nothing), "are not a certificate and its key"),
        (("--tls-cert", tmp_path / "missing", "--tls-key", nothing), "cannot be read: No such file"),
        (("--token-file", nothing), "'nothing' has no hash"),
    ):
        status, output = serve(*flags)
        assert status == 1
        assert message in output
        assert "Traceback" not in output


def test_addresses():
    assert split_address("listen", "[::1]:5") == ("::1", 5)
    assert split_address("listen", "0.0.0.0:65535") == ("0.0.0.0", 65535)


def test_the_metrics_of_an_ipv6_address_are_where_it_says(corpus, make_server):
    with make_server(corpus.root, "--metrics-listen", "[::1]:0") as server:
        assert server.metrics_url.startswith("http://[::1]:")
        with urllib.request.urlopen(server.metrics_url) as answer:
            assert b"packhorse_" in answer.read()
