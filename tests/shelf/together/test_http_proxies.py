"""HTTP proxies of the environment: who goes through them, and what is said if they refuse or are not there."""

import socket

import pytest
from click.testing import CliRunner
from tests.certificates import Authority
from tests.chaos.http_proxy import HttpProxy
from tests.servers import free_port

from packhorse.cli import main
from packhorse.client import RetryPolicy, connect
from packhorse.client.errors import AccessDeniedError, ServerUnavailableError
from packhorse.client.transport import _proxies as proxies
from packhorse.client.transport._proxies import EXEMPTIONS, VARIABLES, Proxy, proxy_for
from packhorse.client.transport.addresses import Address, addresses_of, as_one_address
from packhorse.proof import ask_activity, ask_health, diagnose

QUICK = RetryPolicy(deadline_seconds=2, first_delay_seconds=0.01, most_delay_seconds=0.1)
FAR = "packhorse.far.test:50051"
"""A name that only the proxy knows."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (*VARIABLES, *EXEMPTIONS):
        monkeypatch.delenv(name, raising=False)
    proxies._warn_of_unusable.cache_clear()


@pytest.fixture
def proxy(running_server, monkeypatch):
    with HttpProxy(running_server.target) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:se%3Acret@{proxy.target}")
        yield proxy


@pytest.fixture
def resolving(monkeypatch):
    """Lets names have addresses: `resolving["a.test"] = ["10.0.0.1"]`."""
    real, names = socket.getaddrinfo, {}

    def look_up(host, *arguments, **options):
        if host not in names:
            return real(host, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_variable_of_grpc_leads_through_the_proxy(proxy, monkeypatch, variable):
    monkeypatch.delenv("http_proxy")
    monkeypatch.setenv(variable, f"http://{proxy.target}")
    with connect(FAR, retry=QUICK) as client:
        assert client.get_dataset("rows").name == "rows"
        assert sum(len(block) for block in client.stream_bins("rows"))
    assert {host for host, _ in proxy.asked} == {FAR}


def test_what_asks_a_server_goes_through_the_proxy_with_its_password(proxy):
    assert ask_health(FAR, timeout_seconds=5) == "SERVING"
    assert ask_activity(FAR)
    findings = list(diagnose(FAR))
    assert all(finding.is_good for finding in findings), findings
    assert f"proxy http://{proxy.target} (environment variable http_proxy)" in findings[0].text
    assert "cret" not in str(findings)
    assert {host for host, _ in proxy.asked} == {FAR}
    assert {headers["proxy-authorization"] for _, headers in proxy.asked} == {"basic dxnlcjpzztpjcmv0"}


def test_loopback_and_sockets_are_never_proxied(proxy, running_server, make_server, corpus, tmp_path):
    path = f"unix:{tmp_path}/s"
    port = running_server.target.rpartition(":")[2]
    with make_server(corpus.root, listen=path):
        for target in (f"127.0.0.1:{port}", f"localhost:{port}", f"dns:///localhost:{port}", f"0.0.0.0:{port}", path):
            with connect(target, retry=QUICK) as client:
                assert client.get_dataset("rows").name == "rows"
            assert ask_health(target, timeout_seconds=5) == "SERVING"
    assert proxy.asked == []


def test_a_name_of_this_machine_is_not_proxied(proxy, resolving, running_server):
    resolving["this-host.test"] = ["127.0.0.1", "127.0.0.2"]
    port = running_server.target.rpartition(":")[2]
    with connect(f"this-host.test:{port}", retry=QUICK) as client:
        assert client.get_dataset("rows").name == "rows"
    assert proxy.asked == []


@pytest.mark.parametrize("num_addresses", [1, 2, 5])
@pytest.mark.parametrize(
    "listed",
    [
        "packhorse.svc",
        "x.org, .svc",
        "*.svc ",
        "PACKHORSE.SVC",
        "svc:50051,y",
        "*",
        "10.0.0.0/8",
        "packhorse.svc:50051",
    ],
)
def test_no_proxy_is_about_names_however_many_addresses_they_have(monkeypatch, resolving, num_addresses, listed):
    resolving["packhorse.svc"] = [f"10.0.0.{number}" for number in range(num_addresses)]
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", listed)
    found = addresses_of("packhorse.svc:50051")
    assert len(found) == num_addresses
    assert {address.proxy for address in found} == {None}
    assert as_one_address("packhorse.svc:50051") == Address("packhorse.svc:50051")
    monkeypatch.setenv("no_proxy", "other.svc,packhorse.svc:1,10.9.0.0/16,,")
    assert addresses_of("packhorse.svc:50051") == [
        Address("packhorse.svc:50051", proxy=Proxy("https_proxy", "http://proxy:3128"))
    ], "the proxy looks a name up that goes through it"


@pytest.mark.parametrize(
    ("host", "listed", "is_direct"),
    [
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.1.2.3", "10.1.2.3:50051", True),
        ("10.1.2.3", "10.2.0.0/16,10.1.2.4", False),
        ("10.1.2.3", "*", True),
        ("[fd00::7]", "fd00::/8", True),
        ("[fd00::7]", "[fd00::7]:50051", True),
        ("[fd00::7]", "[fd00::7]:9", False),
        ("[::1]", "", True),
        ("127.9.9.9", "", True),
        ("[::ffff:127.0.0.1]", "", True),
        ("a.localhost", "", True),
        ("a.example.com", "example.com", True),
        ("a.example.org", "example.com", False),
        ("a.example.com.", ".example.com", True),
    ],
)
def test_entries_of_no_proxy(monkeypatch, host, listed, is_direct):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", listed)
    assert (proxy_for(host, "50051") is None) == is_direct


def test_the_first_variable_that_is_set_counts(monkeypatch, caplog):
    monkeypatch.setenv("http_proxy", "http://second:1")
    monkeypatch.setenv("grpc_proxy", "http://first:1")
    assert proxy_for("a.test") == Proxy("grpc_proxy", "http://first:1")
    monkeypatch.setenv("grpc_proxy", "")
    assert proxy_for("a.test") is None
    for unusable in ("https://first:1", "first:1", "http://", "http://first:port"):
        proxies._warn_of_unusable.cache_clear()
        caplog.clear()
        monkeypatch.setenv("grpc_proxy", unusable)
        assert proxy_for("a.test") is None
        assert caplog.messages == ["grpc_proxy is not used: gRPC takes a proxy only as http://HOST:PORT"]


@pytest.mark.parametrize(("status", "way_out"), [(403, "refuses"), (407, "http_proxy=http://USER:PASS"), (405, "405")])
def test_a_proxy_that_refuses_is_asked_once(proxy, status, way_out):
    proxy.status = status
    with connect(FAR, retry=RetryPolicy(deadline_seconds=60, connect_seconds=60)) as client:
        for use in (lambda: client.get_dataset("rows"), lambda: next(client.stream_bins("rows"))):
            before = len(proxy.asked)
            with pytest.raises(AccessDeniedError, match=way_out) as caught:
                use()
            assert len(proxy.asked) == before + 1
            assert f"http://{proxy.target} (environment variable http_proxy)" in str(caught.value)
            assert "add packhorse.far.test to no_proxy" in str(caught.value)
            assert "cret" not in str(caught.value)
            assert caught.value.metadata == {"cause": "proxy"}
    with pytest.raises(AccessDeniedError, match=way_out):
        ask_health(FAR, timeout_seconds=5)
    *_, last = diagnose(FAR)
    assert (last.step, last.is_good) == ("TCP", False)
    assert way_out in last.text


def test_a_proxy_that_has_no_way_now_is_tried_again(proxy):
    proxy.status = 503
    with connect(FAR, retry=QUICK) as client, pytest.raises(ServerUnavailableError, match=r"variable http_proxy\)"):
        client.get_dataset("rows")
    assert len(proxy.asked) > 1


def test_a_proxy_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    with connect(FAR, retry=QUICK) as client, pytest.raises(ServerUnavailableError, match="variable https_proxy"):
        client.get_dataset("rows")
    for command in (["doctor", "--target", FAR], ["doctor", "--health", "--target", FAR]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1
        assert (
            "environment variable https_proxy): if the server can be reached without it, add packhorse" in result.output
        )


def test_a_proxy_that_is_none_is_named(running_server, monkeypatch):
    """Its address leads to something else, such as the server itself."""
    monkeypatch.setenv("http_proxy", f"http://{running_server.target}")
    with connect(FAR, retry=QUICK) as client, pytest.raises(ServerUnavailableError, match="variable http_proxy"):
        client.get_dataset("rows")
    *_, last = diagnose(FAR)
    assert not last.is_good
    assert "variable http_proxy" in last.text


def test_tls_and_its_refusals_pass_the_proxy(corpus, make_server, monkeypatch, tmp_path):
    authority, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    files = authority.issue("server", for_names="DNS:packhorse.far.test")
    flags = ("--tls-cert", files.cert, "--tls-key", files.key)
    with make_server(corpus.root, *flags) as server, HttpProxy(server.target) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.target}")
        with connect(FAR, ca=str(authority.ca), retry=QUICK) as client:
            assert client.get_dataset("rows").name == "rows"
        with connect(FAR, ca=str(other.ca), retry=QUICK) as client, pytest.raises(AccessDeniedError, match="vouch"):
            client.get_dataset("rows")
        with connect(FAR, retry=QUICK) as client, pytest.raises(AccessDeniedError, match="speaks TLS"):
            client.get_dataset("rows")
