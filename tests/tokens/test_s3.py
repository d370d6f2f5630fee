"""Tokens in a real S3 server: moto's, on loopback, with s3fs between it and us."""

import socket
import threading

import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from tests.flat_words import prepare

from packhorse.client import create_packed_dataloader
from packhorse.client.sources import RemoteSource, StoreOptions, TokenStoreError
from packhorse.formats import MegatronTokens, MegatronWriter
from packhorse.formats.retry_policy import RetryPolicy

LENGTHS = np.random.default_rng(4).integers(1, 200, 600)


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A Megatron pair, and a dataset prepared from it."""
    folder = tmp_path_factory.mktemp("s3")
    rng = np.random.default_rng(3)
    with MegatronWriter(folder / "corpus", vocab_size=60_000) as writer:
        for length in LENGTHS:
            writer.append(rng.integers(0, 60_000, length))
    prepare(folder / "corpus.idx", max_seq_len=256, output=folder / "data" / "set", progress=False)
    return folder


@pytest.fixture(scope="module")
def storage_options(port):
    return {
        "key": "key",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"},
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1, "read_timeout": 2},
    }


@pytest.fixture
def server(port, corpus, storage_options):
    import s3fs

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    store = s3fs.S3FileSystem(**storage_options, skip_instance_cache=True)
    store.mkdirs("bucket", exist_ok=True)
    for suffix in (".bin", ".idx"):
        store.put_file(str(corpus / f"corpus{suffix}"), f"bucket/corpus{suffix}")
    yield server
    server.stop()


@pytest.fixture
def make(server, storage_options, tmp_path):
    def make(deadline_seconds=20):
        retry = RetryPolicy(deadline_seconds=deadline_seconds, first_delay_seconds=0.05)
        options = StoreOptions(storage_options=storage_options, attempt_seconds=3, retry=retry)
        return RemoteSource("s3://bucket/corpus", cache_folder=tmp_path / "cache", block_bytes=8192, options=options)

    return make


def test_tokens_are_those_of_the_file(make, corpus):
    source, tokens = make(), MegatronTokens(corpus / "corpus.idx")
    for index in np.random.default_rng(0).permutation(len(LENGTHS))[:200].tolist():
        assert source.read(index).tolist() == tokens.read(index).tolist()


@pytest.mark.realtime
def test_a_server_that_is_away_for_a_while(make, server, corpus, port):
    source, impatient, tokens = make(), make(deadline_seconds=1), MegatronTokens(corpus / "corpus.idx")
    last = len(LENGTHS) - 1
    assert source.read(0).tolist() == tokens.read(0).tolist()
    server.stop()
    with pytest.raises(TokenStoreError, match=r"s3://bucket/corpus\.bin: no bytes"):
        impatient.read(last)
    again = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    threading.Timer(1, again.start).start()
    try:
        assert source.read(last).tolist() == tokens.read(last).tolist()
    finally:
        again.stop()
        server.start()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_loader_reads_from_it(make, corpus, num_workers):
    def rows(tokens):
        loader = create_packed_dataloader(
            f"embedded:{corpus / 'data'}", "set", tokens, batch_size=4, num_workers=num_workers, seed=1
        )
        return [batch["input_ids"].tolist() for batch in loader]

    assert rows(make()) == rows(corpus / "corpus.idx")
