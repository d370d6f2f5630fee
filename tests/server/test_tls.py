"""The server's certificates: gRPC is told of others once, and of nothing where they stay the same. Its TLS records."""

import shutil

import grpc
import pytest
from tests.chaos.proxy import Proxy

from packhorse.client import connect
from packhorse.server.tls import Certificates, TlsFiles


@pytest.fixture
def files(authority, tmp_path):
    """Function: puts a certificate of that name where the server looks."""
    found = TlsFiles(cert=tmp_path / "tls.pem", key=tmp_path / "tls.key")

    def put(name):
        issued = authority.issue(name)
        shutil.copy(issued.cert, found.cert)
        shutil.copy(issued.key, found.key)
        return found

    return put


@pytest.fixture
def asked(monkeypatch):
    """What gRPC asks at every new connection, one for each port."""
    functions = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, other, _: functions.append(other))
    return functions


def test_grpc_is_told_of_other_certificates_once(files, asked):
    """A thousand connections that came at once ended the process, which was told the same certificates for each."""
    certificates = Certificates(files("one"))
    certificates.grpc_credentials()
    assert [asked[0]() for _ in range(3)] == [None] * 3
    files("two")
    certificates.ssl_context()  # the metrics' port may notice first
    renewed, *again = (asked[0]() for _ in range(3))
    assert isinstance(renewed, grpc.ServerCertificateConfiguration)
    assert again == [None, None]


def test_every_port_is_told(files, asked):
    certificates = Certificates(files("one"))
    for _ in range(2):
        certificates.grpc_credentials()
    files("two")
    assert [[other() is None for _ in range(2)] for other in asked] == [[False, True]] * 2


class Recording(Proxy):
    """Keeps what passes, by connection and direction."""

    def __init__(self, upstream):
        super().__init__(upstream)
        self.passed = []

    async def _pump(self, reader, writer, cut_after, flip):
        passed = bytearray()
        self.passed.append(passed)

        class Reader:
            async def read(self, most):
                data = await reader.read(most)
                passed.extend(data)
                return data

        await super()._pump(Reader(), writer, cut_after, flip)


def records_of(passed):
    """Sizes of TLS records, without their headers of five bytes."""
    sizes = []
    while len(passed) >= 5 and len(passed) >= 5 + (size := int.from_bytes(passed[3:5], "big")):
        sizes.append(size)
        passed = passed[5 + size :]
    return sizes


def test_records_are_small_so_that_a_connection_takes_little_memory(corpus, authority, make_server):
    own = authority.issue("server")
    positions = [*range(100)] * 100
    with (
        make_server(corpus.root, "--tls-cert", own.cert, "--tls-key", own.key) as server,
        Recording(server.target) as proxy,
        connect(proxy.target, ca=authority.ca) as client,
    ):
        assert len(client.get_bins("rows", epoch=0, seed=1, positions=positions).bin_ends) == len(positions)
        sizes = max(map(records_of, proxy.passed), key=sum)
    assert sum(sizes) > 100_000
    assert 1 << 10 < max(sizes) <= 4 << 10
