"""A server with certificates and tokens: who gets in, who does not, and that nothing tells a secret."""

import contextlib
import os
import re
import shutil
import ssl
import threading
import time
import urllib.error
import urllib.request
from itertools import count

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.certificates import Authority
from tests.flat_words import packed_dataloader, packed_dataset
from tests.waiting import wait_until

from packhorse.client import Access, RetryPolicy, connect
from packhorse.client.errors import AccessDeniedError, DatasetNotFoundError, InvalidRequestError, UnauthenticatedError
from packhorse.client.transport import addresses as _targets
from packhorse.client.transport.methods import Method
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token, parse_time
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

PATIENT = RetryPolicy(deadline_seconds=20)


def append_stage(client):
    """As far as a token can be refused: the corpus has no mixture."""
    with pytest.raises(InvalidRequestError, match="rows is a prepared dataset; stages can be"):
        client.append_stage("rows", from_position=9, weights={"rows": 1})
    return True


CALLS = {
    "ListDatasets": lambda client: client.list_datasets(),
    "GetDataset": lambda client: client.get_dataset("rows"),
    "GetBins": lambda client: client.get_bins("rows", positions=[0]),
    "LocateSequences": lambda client: client.locate("rows", ids=[0]),
    "PackSequences": lambda client: client.pack_sequences([1], 2),
    "StreamBins": lambda client: list(client.stream_bins("rows")),
    "PackStream": lambda client: client.pack_stream(2).send([1], [1]),
    "AppendStage": append_stage,
    "GetActivity": lambda client: client._transport.answer(Method("get_activity"), pb.GetActivityRequest()),
}
OF_A_DATASET = ("AppendStage", "GetDataset", "GetBins", "LocateSequences", "StreamBins")

TOKENS = {name: new_token() for name in ("all", "few", "reader", "expired", "scraper", "withdrawn", "unknown")}
GRANTS = {
    "all": {"methods": ("*", "AppendStage")},
    "few": {"datasets": ("few*", "missing"), "methods": ("*", "AppendStage")},
    "reader": {"methods": ("ListDatasets", "GetDataset")},
    "expired": {"expires": parse_time("2020-01-01")},
    "scraper": {"methods": ("Metrics",)},
    "withdrawn": {},
}


def write_tokens(path, names=tuple(GRANTS)):
    path.write_text("".join(f"{Grant(name, hash_of(TOKENS[name]), **GRANTS[name])}\n" for name in names))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Another CA."""
    return Authority(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def server(corpus, make_server, authority, tmp_path_factory):
    """A server that wants certificates and tokens on both ports."""
    own = authority.issue("server")
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    write_tokens(tokens)
    with make_server(
        corpus.root,
        *("--tls-cert", own.cert, "--tls-key", own.key, "--tls-client-ca", authority.ca, "--token-file", tokens),
        *("--metrics-listen", "127.0.0.1:0"),
    ) as server:
        server.tokens = tokens
        yield server
        log = server.log()
        assert not [name for name, token in TOKENS.items() if token in log]
        assert "sha256:" not in log
        assert "Traceback" not in log


@pytest.fixture(scope="module")
def member(authority):
    """A certificate of a client."""
    return authority.issue("client")


@pytest.fixture(scope="module")
def secure(authority, member):
    """Arguments of `connect` for a client with a certificate."""
    return {"ca": authority.ca, "cert": member.cert, "key": member.key, "retry": PATIENT}


@pytest.fixture
def quickly():
    """A server that cannot be reached by a client's fault is not waited for."""
    started = os.times().elapsed
    yield
    assert os.times().elapsed - started < PATIENT.deadline_seconds


@pytest.mark.parametrize("call", CALLS)
def test_every_method_refuses_who_has_no_good_token(server, secure, call):
    assert set(CALLS) == set(pb.DESCRIPTOR.services_by_name["PackingService"].methods_by_name)
    for token, cause in ((None, "missing"), ("unknown", "unknown"), ("expired", "expired")):
        with connect(server.target, token=TOKENS.get(token), **secure) as client:
            with pytest.raises(UnauthenticatedError) as caught:
                CALLS[call](client)
            assert caught.value.metadata["cause"] == cause
            assert TOKENS["expired"] not in str(caught.value)
    with connect(server.target, token=TOKENS["scraper"], **secure) as client:
        with pytest.raises(AccessDeniedError, match=rf"this token \(scraper\) is not for {call}") as caught:
            CALLS[call](client)
        assert caught.value.metadata == {"cause": "method"}
    with connect(server.target, token=TOKENS["few"], **secure) as client:
        if call in OF_A_DATASET:
            with pytest.raises(AccessDeniedError, match=r"this token \(few\) is not for dataset 'rows'") as caught:
                CALLS[call](client)
            assert caught.value.metadata == {"cause": "dataset"}
        else:
            assert CALLS[call](client) is not None
    with connect(server.target, token=TOKENS["all"], **secure) as client:
        assert CALLS[call](client) is not None


def test_a_stream_that_says_nothing_is_refused_before_it_does(server, authority, member):
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (authority.ca, member.key, member.cert)))
    silence = threading.Event()
    with grpc.secure_channel(server.target, credentials) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.PackStream(iter(silence.wait, True), timeout=20))
        silence.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_sees_the_names_of_its_datasets_only(server, secure):
    with connect(server.target, token=TOKENS["few"], **secure) as client:
        assert [info.name for info in client.list_datasets()] == ["few"]
        with pytest.raises(DatasetNotFoundError) as caught:
            client.get_dataset("missing")
        assert "rows" not in str(caught.value)
        with pytest.raises(AccessDeniedError):
            client.get_dataset("nothing of that name")
    with connect(server.target, token=TOKENS["all"], **secure) as client:
        assert len(client.list_datasets()) == 4


def test_health_wants_a_certificate_and_no_token(server, authority, member):
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in (authority.ca, member.key, member.cert)))
    with grpc.secure_channel(server.target, credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["none", "expired", "foreign"])
def test_every_method_refuses_clients_without_a_good_certificate(
    server, secure, authority, foreign, kind, call, quickly
):
    arguments = {"ca": authority.ca, "retry": PATIENT, "token": TOKENS["all"]}
    if kind != "none":
        issued = authority.issue("old", days=-1) if kind == "expired" else foreign.issue("client")
        arguments |= {"cert": issued.cert, "key": issued.key}
    with connect(server.target, **arguments) as client, pytest.raises(AccessDeniedError) as caught:
        CALLS[call](client)
    assert caught.value.metadata == {"cause": "client-certificate"}
    assert ("give cert=… and key=…" if kind == "none" else "expired, or is of a CA that the server") in str(
        caught.value
    )


def test_clients_refuse_servers_that_are_not_theirs_and_say_who_speaks_what(
    server, running_server, secure, foreign, monkeypatch, quickly
):
    def refusal(target, **arguments):
        with connect(target, retry=PATIENT, **arguments) as client, pytest.raises(AccessDeniedError) as caught:
            client.list_datasets()
        return caught.value.metadata["cause"], str(caught.value)

    cause, message = refusal(server.target, ca=foreign.ca)
    assert (cause, "does not vouch for" in message) == ("server-certificate", True)
    cause, message = refusal(server.target)
    assert (cause, "speaks TLS, and this client plain text" in message) == ("plain-text", True)
    cause, message = refusal(running_server.target, ca=foreign.ca)
    assert (cause, "speaks plain text, and ca asks for TLS" in message) == ("plain-text", True)
    port = server.target.rpartition(":")[2]
    monkeypatch.setattr(_targets, "_looked_up", lambda name: ["127.0.0.1"] * 2)
    arguments = {name: secure[name] for name in ("ca", "cert", "key")}
    cause, message = refusal(f"elsewhere:{port}", **arguments)
    assert (cause, "elsewhere" in message) == ("server-certificate", True)
    with connect(f"localhost:{port}", token=TOKENS["all"], **secure) as client:  # the certificate is for the name
        assert client.get_dataset("few").num_sequences == 7


def test_metrics_want_the_same(server, authority, member, secure):
    def scrape(token=None, cert=member, path="metrics"):
        context = ssl.create_default_context(cafile=authority.ca)
        if cert is not None:
            context.load_cert_chain(cert.cert, cert.key)
        headers = {} if token is None else {"Authorization": f"Bearer {TOKENS[token]}"}
        request = urllib.request.Request(server.metrics_url.removesuffix("metrics") + path, headers=headers)
        with urllib.request.urlopen(request, context=context, timeout=20) as answer:
            return answer.read().decode()

    with connect(server.target, token="unknown", **secure) as client, pytest.raises(AccessDeniedError):
        client.list_datasets()
    assert server.metrics_url.startswith("https://")
    found = scrape("scraper")
    assert 'packhorse_errors_total{reason="UNAUTHENTICATED"}' in found
    for token, status in ((None, 401), ("unknown", 401), ("expired", 401), ("reader", 403)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            scrape(token)
        assert caught.value.code == status
        said = caught.value.read().decode()
        assert "packhorse_" not in said.replace("packhorse_tokens", "")
        assert ("Authorization: Bearer" in said) == (token is None)
    with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF"):
        scrape("scraper", cert=None)
    assert scrape(None, path="healthz") == "SERVING\n", "it tells nothing but that"
    ends = dict(re.findall(r'_expiry_timestamp_seconds\{kind="(\w+)",name="expired"\} (.*)', found))
    assert float(ends["token"]) == parse_time("2020-01-01").timestamp()
    ends = re.findall(r'_expiry_timestamp_seconds\{kind="certificate",name=".+"\} (.*)', found)
    assert len(ends) == 2, "the server's, and the clients' CA"
    assert min(map(float, ends)) > time.time()


def test_a_token_that_is_withdrawn_ends_its_streams(server, secure):
    with (
        connect(server.target, token=TOKENS["withdrawn"], **secure) as client,
        client.pack_stream(8, lookahead_sequences=1) as stream,
    ):
        stream.send([1], [8])
        write_tokens(server.tokens, [name for name in GRANTS if name != "withdrawn"])
        try:
            numbers = count(2)
            with pytest.raises(UnauthenticatedError, match="withdrawn"):  # the file is looked at a few times a second
                wait_until(lambda: stream.send([next(numbers)], [8]) is None)
        finally:
            write_tokens(server.tokens)
        wait_until(lambda: is_let_in(client))


def is_let_in(client):
    with contextlib.suppress(UnauthenticatedError):
        return client.get_dataset("few").num_sequences == 7
    return False


def test_token_files_are_read_for_every_call(server, secure, tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKENS["reader"] + "\n")
    with connect(server.target, token_file=file, **secure) as client:
        assert client.get_dataset("few").num_sequences == 7
        with pytest.raises(AccessDeniedError):
            client.get_bins("few", positions=[0])
        file.write_text(TOKENS["few"])
        assert len(client.get_bins("few", positions=[0])) == 1


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_certificates_and_tokens_reach_datasets_and_their_workers(
    server, corpus, secure, tmp_path, monkeypatch, start_method
):
    file = tmp_path / "token"
    file.write_text(TOKENS["few"])
    paths = {name: str(secure[name]) for name in ("ca", "cert", "key")}
    options = {"batch_size": 1, "rank": 0, "world_size": 1, "timeout_seconds": 30}
    if start_method == "fork":
        options["access"] = Access(**paths, token_file=str(file))
    else:
        for name, value in {**paths, "token_file": file}.items():
            monkeypatch.setenv(f"PACKHORSE_CLIENT_{name.upper()}", str(value))
    found = [batch["ids"] for batch in packed_dataset(server.target, "few", corpus.megatron, **options)]
    assert sorted(np.concatenate(found).tolist()) == list(range(7))
    loader = packed_dataloader(
        server.target, "few", corpus.megatron, num_workers=1, multiprocessing_context=start_method, **options
    )
    again = [batch["ids"] for batch in loader]
    assert sorted(np.concatenate(again).tolist()) == list(range(7))


def test_certificates_are_replaced_while_streams_run(
    corpus, make_server, authority, foreign, tmp_path, joined, embedded
):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(issued):
        shutil.copy(issued.key, key)
        shutil.copy(issued.cert, cert)

    def replace_by(issued):
        install(issued)
        host, port = server.target.rsplit(":", 1)
        shown = ssl.PEM_cert_to_DER_cert(issued.cert.read_text())
        wait_until(lambda: ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)))) == shown)

    def ask(ca):
        with connect(server.target, ca=ca, retry=PATIENT) as client:
            return client.get_dataset("rows").num_sequences

    def refusal(ca):
        with pytest.raises(AccessDeniedError) as caught:
            ask(ca)
        assert caught.value.metadata == {"cause": "server-certificate"}
        return str(caught.value)

    install(authority.issue("first"))
    with make_server(corpus.root, "--tls-cert", cert, "--tls-key", key, "--no-reflection") as server:
        with connect(server.target, ca=authority.ca, retry=PATIENT) as client, client.stream_bins("rows") as stream:
            blocks = [next(stream)]
            assert ask(authority.ca) == 2000
            replace_by(foreign.issue("second"))
            assert ask(foreign.ca) == 2000
            assert "does not vouch for" in refusal(authority.ca)
            blocks += stream
            assert client.get_dataset("few").num_sequences == 7  # on its old connection
        assert joined(blocks) == joined(embedded.stream_bins("rows"))
        cert.write_text(cert.read_text()[:200])
        wait_until(lambda: ask(foreign.ca) == 2000 and "stays in use" in server.log())
        replace_by(foreign.issue("old", days=-1))
        assert "certificate has expired" in refusal(foreign.ca)
        replace_by(foreign.issue("other", for_names="DNS:elsewhere"))
        assert "127.0.0.1" in refusal(foreign.ca)
        with grpc.secure_channel(server.target, grpc.ssl_channel_credentials(foreign.ca.read_bytes())) as channel:
            replace_by(foreign.issue("third"))
            with pytest.raises(grpc.RpcError) as caught:
                ProtoReflectionDescriptorDatabase(channel).get_services()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
