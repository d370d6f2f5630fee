"""Addresses: free ports, unix sockets left by the dead, and what cannot be listened on."""

import socket
import subprocess
import sys

import pytest

from packhorse.client import connect
from packhorse.server.app import _check_socket
from packhorse.server.config import ServeConfig, split_address


@pytest.fixture
def serve(corpus):
    """Function: runs `serve` to its end; (exit status, output)."""

    def run(*flags, root=corpus.root):
        command = [sys.executable, "-m", "packhorse.cli", "serve", "--data-root", root, *flags]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30)
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
            _check_socket(path)
        for path in (file, alive, tmp_path):
            with pytest.raises(OSError, match=f"--listen unix:{path}: the path is in use"):
                _check_socket(path)
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
        ("--listen", {"listen": "50051"}),
        ("--listen", {"listen": "127.0.0.1:http"}),
        ("--listen", {"listen": "127.0.0.1:65536"}),
        ("--listen", {"listen": ":50051"}),
        ("--metrics-listen", {"metrics_listen": "localhost"}),
        ("--grace-seconds", {"grace_seconds": -1}),
        ("--grace-seconds", {"grace_seconds": float("nan")}),
        ("--max-streams", {"max_streams": 0}),
    ],
)
def test_options_out_of_range_name_their_flag(tmp_path, flag, options):
    with pytest.raises(ValueError, match=f"^{flag} must be"):
        ServeConfig(data_root=tmp_path, **options)


def test_addresses():
    assert split_address("--listen", "[::1]:5") == ("::1", 5)
    assert split_address("--listen", "0.0.0.0:65535") == ("0.0.0.0", 65535)
