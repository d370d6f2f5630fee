"""`packhorse doctor`: every step one line, and each failure with its way out."""

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tests.certificates import Authority

from packhorse.client import Access
from packhorse.proof import doctor as diagnosis
from packhorse.proof.commands import doctor as doctor_command
from packhorse.proof.doctor import STEPS
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token, parse_time
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

TOKENS = {name: new_token() for name in ("good", "expired", "soon", "nothing", "bins")}


@pytest.fixture(scope="module")
def secured(corpus, make_server, authority, tmp_path_factory):
    """A server with certificates and tokens."""
    folder = tmp_path_factory.mktemp("doctor")
    scopes = {
        "good": {},
        "expired": {"expires": parse_time("2020-01-01")},
        "soon": {"expires": datetime.now(UTC) + timedelta(days=3, hours=1)},
        "nothing": {"datasets": ("none",)},
        "bins": {"methods": ("StreamBins",)},
    }
    (folder / "tokens").write_text(
        "".join(f"{Grant(name, hash_of(TOKENS[name]), **scopes[name])}\n" for name in TOKENS)
    )
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    own = authority.issue("doctor")
    flags = ("--tls-cert", own.cert, "--tls-key", own.key, "--token-file", folder / "tokens")
    with make_server(corpus.root, *flags) as server:
        server.folder = folder
        yield server


@pytest.fixture
def doctor(packhorse, tmp_path, monkeypatch):
    """Function: runs `packhorse doctor` with certificates and a token from a profile."""
    monkeypatch.setenv("PACKHORSE_PROFILES", str(tmp_path / "profiles.toml"))

    def run(target, *arguments, **access):
        lines = [f"{key} = {json.dumps(str(value))}" for key, value in access.items()]
        (tmp_path / "profiles.toml").write_text("\n".join(["[tried]", *lines]))
        return packhorse("doctor", "--profile", "tried", "--target", target, *arguments)

    return run


@pytest.fixture
def examined(doctor):
    """Function: the exit status, the signs of all steps in order, and the last line."""

    def run(target, *arguments, **access):
        result = doctor(target, *arguments, **access)
        lines = [re.fullmatch(r"([✓!✗]) (.+?)  +(.+)", line).groups() for line in result.stdout.splitlines()]
        assert [step for _, step, _ in lines] == list(STEPS[: len(lines)])
        assert not [token for token in TOKENS.values() if token in result.output]
        return result.exit_code, "".join(sign for sign, _, _ in lines), lines[-1][1:]

    return run


class Odd(packing_pb2_grpc.PackingServiceServicer):
    """A server that lists a dataset and has no bins."""

    def ListDatasets(self, request, context):  # noqa: N802
        return pb.ListDatasetsResponse(datasets=[pb.Dataset(name="rows")], server_version="9.9")


@pytest.fixture
def odd():
    """(target, health) of it."""
    server = grpc.server(ThreadPoolExecutor(2))
    own_health = health.HealthServicer()
    packing_pb2_grpc.add_PackingServiceServicer_to_server(Odd(), server)
    health_pb2_grpc.add_HealthServicer_to_server(own_health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", own_health
    server.stop(None)


def test_all_is_well(examined, secured, authority, running_server, running_unix_server):
    for target in (running_server.target, running_unix_server.target):
        status, signs, (_, text) = examined(target)
        assert (status, signs) == (0, "✓" * len(STEPS))
        assert re.fullmatch(r"of few after [\d.]+ ms, over an open connection after [\d.]+ ms", text)
    access = {"ca": authority.ca, "token_file": secured.folder / "good"}
    status, signs, (_, text) = examined(secured.target, "named", **access)
    assert (status, signs) == (0, "✓" * len(STEPS))
    assert text.startswith("of named after")


def test_the_environment_says_what_flags_leave_out(examined, secured, authority, monkeypatch):
    monkeypatch.setenv("PACKHORSE_CLIENT_CA", str(authority.ca))
    monkeypatch.setenv("PACKHORSE_CLIENT_TOKEN_FILE", str(secured.folder / "good"))
    assert examined(secured.target)[:2] == (0, "✓" * len(STEPS))


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("0.0.0.0:5", "127.0.0.1:5"),  # any address of this machine, as a server listens: no address to connect to
        ("dns:///0.0.0.0:5", "dns:///127.0.0.1:5"),
        ("10.0.0.0:5", "10.0.0.0:5"),
    ],
)
def test_health_is_asked_of_the_machine_that_the_target_names(doctor, monkeypatch, target, asked):
    monkeypatch.setattr(doctor_command, "ask_health", lambda target, **options: "SERVING")
    assert doctor(target, "--health").stdout == f"{asked}: SERVING\n"


def test_dns(examined, monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    status, signs, (step, text) = examined("trainre:50051")
    assert (status, signs, step) == (1, "✗", "DNS")
    assert "trainre cannot be resolved" in text
    assert "check its spelling" in text


def test_tcp(examined, tmp_path):
    status, signs, (step, text) = examined("127.0.0.1:1")
    assert (status, signs, step) == (1, "✓✗", "TCP")
    assert text.startswith("127.0.0.1 port 1: Connection refused: is `packhorse serve` running there")
    status, signs, (step, text) = examined(f"unix:{tmp_path}/s")
    assert (status, signs, step) == (1, "✓✗", "TCP")
    assert f"is `packhorse serve --listen unix:{tmp_path}/s` running" in text


def test_addresses_that_do_not_answer_are_left_out_of_later_steps(monkeypatch):
    monkeypatch.setattr(diagnosis, "is_local", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        examination = diagnosis._Examination(host, Access(), dataset=None, timeout_seconds=2.0)
        examination._addresses = ["127.0.0.1", "127.0.0.2"]
        finding = examination._tcp()
    assert finding.is_warning
    assert "1 other addresses do not: 127.0.0.2" in finding.text
    assert examination._addresses == ["127.0.0.1"]


def test_tls(examined, secured, running_server, authority, tmp_path):
    for target, access, message in (
        (secured.target, {}, "speaks TLS, and this client plain text: give ca=…"),
        (secured.target, {"ca": Authority(tmp_path / "other").ca}, "does not vouch for"),
        (running_server.target, {"ca": authority.ca}, "speaks plain text, and ca asks for TLS"),
    ):
        status, signs, (step, text) = examined(target, **access)
        assert (status, signs, step) == (1, "✓✓✗", "TLS")
        assert message in text


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "requires a token: give token_file=…; `packhorse token new` at the server makes one"),
        ("expired", "the token (expired) expired at 2020-01-01 00:00 UTC; make another"),
    ],
)
def test_auth(examined, secured, authority, token, message):
    access = {} if token is None else {"token_file": secured.folder / token}
    status, signs, (step, text) = examined(secured.target, ca=authority.ca, **access)
    assert (status, signs, step) == (1, "✓✓✓✗", "auth")
    assert message in text


def test_a_token_that_expires_soon_is_warned_of(doctor, secured, authority):
    result = doctor(secured.target, ca=authority.ca, token_file=secured.folder / "soon")
    assert result.exit_code == 0
    (line,) = (line for line in result.stdout.splitlines() if " auth " in line)
    assert line.startswith("! ")
    assert "the server accepts the token, for 3 more days: make another with `packhorse token new`" in line


@pytest.mark.parametrize(
    ("days", "sign", "told"),
    [
        (20, "✓", "and this client's fits, good for 20 days"),
        (5, "!", "good for 5 days: have another issued, and replace"),
        (-1, "✗", "have another issued by the CA of the server's tls_client_ca"),
    ],
)
def test_own_certificate_is_looked_at(doctor, corpus, make_server, authority, days, sign, told):
    server, own = authority.issue("mutual"), authority.issue(f"own{days}", days=days)
    flags = ("--tls-cert", server.cert, "--tls-key", server.key, "--tls-client-ca", authority.ca)
    with make_server(corpus.root, *flags) as running:
        result = doctor(running.target, ca=authority.ca, cert=own.cert, key=own.key)
    (line,) = (line for line in result.stdout.splitlines() if " TLS " in line)
    assert line.startswith(f"{sign} TLS")
    assert told in line
    assert result.exit_code == (1 if sign == "✗" else 0)


def test_another_service_than_packhorse(examined, running_server):
    address = running_server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    status, signs, (step, text) = examined(address, "--timeout-seconds", "2")
    assert (status, signs, step) == (1, "✓✓✓✗", "auth")
    assert "is a packhorse server at this port" in text


def test_versions_health_and_first_bin(examined, odd):
    target, own_health = odd
    status, signs, (step, text) = examined(target)
    assert (status, signs, step) == (1, "✓✓✓✓!✗", "health")
    assert "the server does not answer about its health" in text
    own_health.set("packhorse.v1.PackingService", health_pb2.HealthCheckResponse.NOT_SERVING)
    status, signs, (step, text) = examined(target)
    assert (status, signs, step) == (1, "✓✓✓✓!✗", "health")
    assert text.startswith("NOT_SERVING: the server drains, still compiles its kernels")
    own_health.set("packhorse.v1.PackingService", health_pb2.HealthCheckResponse.SERVING)
    status, signs, (step, text) = examined(target)
    assert (status, signs, step) == (1, "✓✓✓✓!✓✓✗", "first bin")
    assert text.startswith("rows sends no bin: ")


def test_datasets(examined, running_server, secured, authority):
    status, signs, (step, text) = examined(running_server.target, "rowz")
    assert (status, signs, step) == (1, "✓✓✓✓✓✓✗", "datasets")
    assert text == "no dataset is named rowz; there are few, named, rows, truncated"

    def with_token(name, *arguments):
        return examined(secured.target, *arguments, ca=authority.ca, token_file=secured.folder / name)

    status, signs, (step, text) = with_token("nothing")
    assert (status, signs, step) == (1, "✓✓✓✓✓✓✗", "datasets")
    assert text.startswith("this token grants access to no served dataset")
    status, signs, (step, text) = with_token("bins")
    assert (status, signs, step) == (1, "✓✓✓!✓✓✗", "datasets")
    assert "name the dataset" in text
    assert with_token("bins", "rows")[:2] == (0, "✓✓✓!✓✓✓✓")


def test_targets_that_are_none_are_told_so(packhorse):
    for target, message in (("embedded:x", "is not a server"), ("http://a:1", "is no address")):
        result = packhorse("doctor", "--target", target)
        assert result.exit_code in (1, 2)
        assert message in result.stderr


def test_several_hosts_are_gone_through_one_by_one(packhorse, running_server):
    result = packhorse("doctor", "--target", f"{running_server.target},127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stdout.count("DNS") == 2
    assert result.stdout.splitlines()[-1].startswith("✗ TCP")
