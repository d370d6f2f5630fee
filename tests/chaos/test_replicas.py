"""Several replicas, of which one lacks the dataset, is gone, or is another's."""

import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tests.chaos.proxy import Proxy

from packhorse.client import DigestMismatchError, RetryPolicy, connect
from packhorse.client.errors import DatasetNotFoundError, InvalidRequestError, ServerUnavailableError
from packhorse.client.transport import addresses as targets

QUICK = RetryPolicy(deadline_seconds=30, first_delay_seconds=0.01, most_delay_seconds=0.1)
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def lacking(corpus, make_server, tmp_path_factory):
    """A server that has `few` and not `rows`."""
    root = tmp_path_factory.mktemp("lacking")
    shutil.copytree(corpus.root / "few", root / "few")
    with make_server(root) as server:
        yield server


@pytest.fixture
def both(running_server, lacking):
    return f"{running_server.target},{lacking.target}"


def test_a_replica_without_the_dataset_is_passed_over(both, client, joined):
    whole = joined(client.stream_bins("rows"))
    for _ in range(40):
        with connect(both, retry=RetryPolicy(deadline_seconds=0)) as one:
            assert one.get_dataset("rows").name == "rows"
            assert one.stream_bins("rows").header.num_bins > 0
    with connect(both, retry=RetryPolicy(deadline_seconds=0)) as one:
        assert joined(one.stream_bins("rows")) == whole
        assert one.locate("rows", ids=[5])[0].found
        assert one.get_bins("rows", positions=[0])


@pytest.mark.realtime
def test_what_no_replica_has_is_not_found_at_once(both):
    with connect(f"{both}", retry=QUICK) as one:
        started = time.monotonic()
        for use in (lambda: one.get_dataset("nothing"), lambda: next(one.stream_bins("nothing"))):
            with pytest.raises(DatasetNotFoundError, match="nothing"):
                use()
        assert time.monotonic() - started < QUICK.deadline_seconds / 2


@pytest.mark.realtime
def test_a_replica_that_is_gone_may_have_what_the_other_lacks(lacking):
    policy = RetryPolicy(deadline_seconds=1, first_delay_seconds=0.01, most_delay_seconds=0.1)
    with (
        connect(f"{lacking.target},{NOWHERE}", retry=policy) as one,
        pytest.raises(ServerUnavailableError, match="another replica: no dataset is named 'rows'"),
    ):
        one.get_dataset("rows")


@pytest.mark.realtime
def test_a_stream_waits_for_the_replica_that_has_the_dataset(running_server, lacking, client, joined):
    whole = joined(client.stream_bins("rows"))
    with Proxy(running_server.target) as proxy, connect(f"{proxy.target},{lacking.target}", retry=QUICK) as one:
        proxy.cut_after_bytes = [6000]
        stream = one.stream_bins("rows")
        blocks = [next(stream)]
        proxy.upstream = NOWHERE
        threading.Timer(1, setattr, [proxy, "upstream", running_server.target]).start()
        blocks += stream
        assert joined(blocks) == whole
        assert proxy.num_connections > 2


def test_a_replica_with_another_version_is_passed_over(corpus, make_server, client, joined, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    pq.write_table(pa.table({"length": [5, 6, 7]}), tmp_path / "in.parquet")
    output = tmp_path / "root" / "rows"
    prepare(tmp_path / "in.parquet", length_column="length", max_seq_len=256, output=output, progress=False)
    digest = client.get_dataset("rows").digest
    with make_server(tmp_path / "root") as other, connect(f"{other.target},{client.target}", retry=QUICK) as one:
        for _ in range(10):
            assert one.stream_bins("rows", expected_digest=digest).header.digest == digest
        with pytest.raises(DigestMismatchError):
            one.stream_bins("rows", expected_digest="a-b").header  # noqa: B018


def test_calls_spread_over_replicas(running_server):
    with Proxy(running_server.target) as left, Proxy(running_server.target) as right:
        for _ in range(40):
            with connect(f"{left.target},{right.target}") as one:
                one.list_datasets()
        assert left.num_connections > 4
        assert right.num_connections > 4


def test_every_address_of_a_name_is_a_replica(lacking, running_server, monkeypatch):
    """A name of two addresses, as a headless service in Kubernetes: the proxy listens at the second."""
    port = int(lacking.target.rpartition(":")[2])

    def getaddrinfo(host, *_, **__):
        assert host == "packhorse.test"
        return [(socket.AF_INET, None, 0, "", (ip, 0)) for ip in ("127.0.0.1", "127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(targets.socket, "getaddrinfo", getaddrinfo)
    assert targets.addresses_of("packhorse.test:5") == [
        targets.Address("127.0.0.1:5", authority="packhorse.test:5"),
        targets.Address("127.0.0.2:5", authority="packhorse.test:5"),
    ]
    with Proxy(running_server.target, listen=("127.0.0.2", port)):
        for _ in range(20):
            with connect(f"dns:///packhorse.test:{port}", retry=RetryPolicy(deadline_seconds=0)) as one:
                assert one.get_dataset("rows").name == "rows"


@pytest.mark.realtime
def test_a_name_of_several_addresses_keeps_its_certificate(monkeypatch, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl for a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=packhorse.test "
        f"-addext subjectAltName=DNS:packhorse.test -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    addresses = [(socket.AF_INET, None, 0, "", (ip, 0)) for ip in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(targets.socket, "getaddrinfo", lambda *_, **__: addresses)
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    policy = RetryPolicy(deadline_seconds=5, first_delay_seconds=0.01, most_delay_seconds=0.1)
    with (
        connect(f"packhorse.test:{port}", credentials=trusted, retry=policy) as one,
        pytest.raises(
            ServerUnavailableError, match=r"another replica: .* UNIMPLEMENTED"
        ),  # reached, but it has no methods
    ):
        one.list_datasets()
    server.stop(0)


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        ("a:1, b:2", ["a:1", "b:2"]),
        ("dns:///a:1", ["a:1"]),
        ("dns:a:1", ["a:1"]),
        ("[::1]:50051,127.0.0.1:5", ["[::1]:50051", "127.0.0.1:5"]),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ["127.0.0.1:1", "127.0.0.1:2"]),
        ("unix:/tmp/a,b", ["unix:/tmp/a,b"]),
        ("dns://8.8.8.8/a:1", ["dns://8.8.8.8/a:1"]),
        ("xds:///a", ["xds:///a"]),
    ],
)
def test_targets(target, hosts):
    assert list(targets.hosts_of(target)) == hosts


@pytest.mark.parametrize(
    "target",
    [
        *("", "50051", "host", ":1", "a:0", "a:65536", "a:b", "a 1:2", "::1:5", "x" * 100_000),
        *("http://a:1", "https://a", "grpc://a:1", "dns:///a", "a:1/x", "a:1,", "a:1,,b:2"),
    ],
)
def test_what_can_never_be_reached_is_refused_at_once(target):
    with pytest.raises(InvalidRequestError, match="is no address; give HOST:PORT") as caught:
        connect(target)
    assert caught.value.metadata["field"] == "target"
    assert len(str(caught.value)) < 300
