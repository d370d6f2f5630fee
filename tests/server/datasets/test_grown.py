"""Runs that began with an earlier version of a dataset that grew: they keep it, also after the server was restarted."""

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.client import DigestMismatchError, connect
from packhorse.dataset import prune_version, versions_of
from packhorse.server.datasets.catalog import Catalog


@pytest.fixture
def root(tmp_path):
    """A data root with "set", of three versions with 3, 5 and 6 sequences."""
    for number, lengths in enumerate(([3, 1, 2], [4, 4], [7])):
        source = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": lengths}), source)
        options = {"length_column": "n", "max_seq_len": 8, "progress": False}
        prepare(source, output=tmp_path / "root" / "set", append=number > 0, **options)
    return tmp_path / "root"


@pytest.fixture
def digests(root):
    """Version → digest."""
    return {version.number: version.manifest.digest for version in versions_of(root / "set")}


def test_a_version_is_opened_for_who_asks_for_its_digest(root, digests):
    catalog = Catalog(root)
    assert catalog.names() == ["set"]
    assert catalog.older_digests("set") == []
    for number, num_sequences in ((3, 6), (1, 3), (2, 5), (1, 3)):
        dataset = catalog.get("set", digests[number])
        assert (dataset.manifest.num_sequences, dataset.name) == (num_sequences, "set")
        catalog.confirm(dataset)
    assert catalog.older_digests("set") == [digests[1], digests[2]]
    assert catalog.get("set", digests[1]) is catalog.get("set", digests[1])
    assert catalog.get("set", "of none").manifest.version == 3


def test_runs_go_on_with_their_version_until_it_is_pruned(root, digests, make_server):
    with make_server(root) as server, connect(server.target) as client:
        for number, num_sequences in ((1, 3), (2, 5)):
            stream = client.stream_bins("set", expected_digest=digests[number])
            assert stream.header.digest == digests[number]
            assert sorted(i for block in stream for i in block.ids.tolist()) == list(range(num_sequences))
        prune_version(root / "set", 2)
        assert client.get_bins("set", positions=[0], expected_digest=digests[2]).ids.size  # it is open
        assert client.stream_bins("set").header.digest == digests[3]
    with connect(f"embedded:{root}") as client:
        assert client.get_bins("set", positions=[0], expected_digest=digests[1]).ids.size
        with pytest.raises(DigestMismatchError):
            client.get_bins("set", positions=[0], expected_digest=digests[2])


def test_a_damaged_version_costs_nothing_but_itself(root, digests, caplog):
    pool = root / "set" / "versions" / "1" / "pools.npy"
    data = pool.read_bytes()
    pool.unlink()
    pool.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (root / "set" / "versions" / "2" / "manifest.json").unlink()
    catalog = Catalog(root)
    with caplog.at_level(logging.ERROR, "packhorse"):
        for number in (1, 2):
            assert catalog.get("set", digests[number]).manifest.version == 3  # whose digest is then refused
    (record,) = caplog.records
    assert "not serving an earlier version of set: 1/pools.npy does not match its checksum" in record.getMessage()
