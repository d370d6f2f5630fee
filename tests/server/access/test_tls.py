"""The server's certificates: gRPC is told of others once, and of nothing where they stay the same."""

import shutil
import time
from datetime import UTC, datetime

import grpc
import pytest

from packhorse.server.access import tls
from packhorse.server.access.tls import Certificates, TlsFiles


@pytest.fixture(autouse=True)
def _looks_every_time(monkeypatch):
    monkeypatch.setattr("packhorse.server.access.tls.FRESH_SECONDS", 0.0)


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
def renewals(monkeypatch):
    """The functions that gRPC calls at every new connection, one for each port."""
    functions = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, other, _: functions.append(other))
    return functions


def test_grpc_is_told_of_other_certificates_once(files, renewals):
    """A thousand connections that came at once ended the process, which was told the same certificates for each."""
    certificates = Certificates(files("one"))
    certificates.grpc_credentials()
    assert [renewals[0]() for _ in range(3)] == [None] * 3
    files("two")
    certificates.ssl_context()  # the metrics' port may notice first
    renewed, *again = (renewals[0]() for _ in range(3))
    assert isinstance(renewed, grpc.ServerCertificateConfiguration)
    assert again == [None, None]


def test_what_is_wrong_is_told_as_long_as_it_lasts_and_when_they_end(files):
    put = files("one")
    certificates = Certificates(put)
    ((name, end),) = certificates.expiries().items()
    assert name == put.cert.name
    assert end > time.time()
    assert not certificates.trouble
    put.key.write_text("half a key")
    assert "stays in use" in certificates.trouble
    put.cert.write_text("half a certificate")
    assert certificates.expiries() == {}
    files("two")
    assert not certificates.trouble


def test_of_two_files_of_one_name_the_first_to_expire_is_told(files, monkeypatch, tmp_path):
    """A secret mounted twice, as tls.crt in two folders: the expiry of one was lost."""
    put = files("one")
    (tmp_path / "ca").mkdir()
    ca = tmp_path / "ca" / put.cert.name
    ca.write_bytes(put.cert.read_bytes())
    certificates = Certificates(TlsFiles(cert=put.cert, key=put.key, client_ca=ca))
    ends = {put.cert: datetime(2031, 1, 1, tzinfo=UTC), ca: datetime(2041, 1, 1, tzinfo=UTC)}
    monkeypatch.setattr(tls, "expiry_of", ends.__getitem__)
    assert certificates.expiries() == {put.cert.name: ends[put.cert].timestamp()}


def test_every_port_is_told(files, renewals):
    certificates = Certificates(files("one"))
    for _ in range(2):
        certificates.grpc_credentials()
    files("two")
    assert [[other() is None for _ in range(2)] for other in renewals] == [[False, True]] * 2
