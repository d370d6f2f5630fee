"""A dataset whose folder is replaced while it is served: new runs get the new version, others keep theirs."""

import gc
import json
import logging
import shutil
import signal

import pytest
from tests.waiting import time_with

from packhorse.client import DigestMismatchError, RetryPolicy, connect
from packhorse.dataset import POOLS
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets import catalog_records
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb


@pytest.fixture
def root(corpus, tmp_path):
    """A data root with `few` as "data"."""
    shutil.copytree(corpus.root / "few", tmp_path / "root" / "data")
    return tmp_path / "root"


@pytest.fixture
def replace(corpus, root):
    """Function: puts another dataset of the corpus in the place of "data", as `prepare --overwrite` does."""

    def put(name):
        shutil.copytree(corpus.root / name, root / ".new")
        (root / "data").rename(root / ".old")
        (root / ".new").rename(root / "data")
        shutil.rmtree(root / ".old")

    return put


def test_each_digest_leads_to_its_version(root, replace, caplog):
    catalog = Catalog(root)
    old = catalog.get("data")
    replace("rows")
    with caplog.at_level(logging.WARNING, "packhorse"):
        catalog.refresh()
        catalog.refresh()
    new = catalog.get("data")
    assert new.manifest.digest != old.manifest.digest
    assert catalog.get("data", old.manifest.digest) is old
    assert catalog.get("data", new.manifest.digest) is new
    assert catalog.get("data", "of neither") is new  # whose digest is then refused
    assert catalog.older_digests("data") == [old.manifest.digest]
    assert catalog.opened() == [new]
    for version in (old, new):
        catalog.confirm(version)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"data was replaced: new runs get digest {new.manifest.digest}; those that began with digest "
        f"{old.manifest.digest} keep it while they read it"
    )


def test_an_older_version_goes_when_its_time_is_over_and_nobody_reads_it(root, replace, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(catalog_records, "time", time_with(monotonic=lambda: now[0]))
    catalog = Catalog(root)
    backend = Backend(Mixtures(catalog))
    topology = pb.Topology(
        world_size=1,
        workers_per_rank=1,
        batch_size=1,
        accumulation=1,
        remainder=pb.REMAINDER_POLICY_SPREAD,
        mode=pb.STREAM_MODE_PARTITION,
        balance=pb.BALANCE_NONE,
    )
    running = backend.stream_bins(pb.StreamBinsRequest(dataset="data", topology=topology))
    digest = next(running).header.digest
    replace("rows")
    catalog.refresh()
    assert backend.get_dataset(pb.GetDatasetRequest(name="data")).dataset.older_digests == [digest]
    now[0] += 10 * catalog_records.KEEP_SECONDS  # it paused
    catalog.refresh()
    assert catalog.older_digests("data") == [digest]
    num_sequences = sum(len(message.block.bins.ids) for message in running) // 4
    assert num_sequences == 7
    catalog.refresh()
    assert catalog.older_digests("data") == [digest]  # it was read just now
    del running
    gc.collect()
    now[0] += 2 * catalog_records.KEEP_SECONDS
    catalog.refresh()
    assert catalog.older_digests("data") == []
    with pytest.raises(ServiceError) as caught:
        backend.get_bins(pb.GetBinsRequest(dataset="data", expected_digest=digest, positions=[0]))
    assert caught.value.reason == pb.ERROR_REASON_DIGEST_MISMATCH


def test_a_cursor_beyond_the_end_of_a_smaller_dataset_is_told_of_the_dataset(root, corpus):
    """Clients ask other replicas for a digest that one has not, and for nothing that no replica could answer."""
    with connect(f"embedded:{corpus.root}") as client:
        larger = client.get_dataset("rows")
    with connect(f"embedded:{root}") as client:
        cursor = {"topology": Topology(start_position=larger.num_bins), "expected_digest": larger.digest}
        with pytest.raises(DigestMismatchError, match="dataset 'data' is not the one that this run began with"):
            next(client.stream_bins("data", **cursor))


def test_a_folder_that_is_written_anew_with_the_same_content_stays_what_it_is(root, replace):
    catalog = Catalog(root)
    dataset = catalog.get("data")
    replace("few")
    catalog.refresh()
    assert catalog.get("data") is dataset
    assert catalog.older_digests("data") == []
    catalog.confirm(dataset)


def test_a_new_version_that_is_refused_leaves_the_old_one_and_is_looked_at_again(root, replace, corpus, caplog):
    catalog = Catalog(root)
    old = catalog.get("data")
    replace("rows")
    (root / "data" / POOLS).unlink()
    with caplog.at_level(logging.ERROR, "packhorse"):
        catalog.refresh()
        catalog.refresh()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "not serving the new version of data"
    ]
    assert catalog.get("data") is old
    shutil.copy(corpus.root / "rows" / POOLS, root / "data")
    catalog.refresh()
    assert catalog.get("data").manifest.num_sequences == 2000


def test_a_folder_altered_in_place_ends_its_open_streams(root):
    catalog = Catalog(root)
    dataset = catalog.get("data")
    data = bytearray((root / "data" / POOLS).read_bytes())
    data[-3] ^= 0x10
    (root / "data" / POOLS).write_bytes(data)
    catalog.refresh()
    assert catalog.opened() == []
    with pytest.raises(ServiceError, match=r"is not served: .*altered") as caught:
        catalog.confirm(dataset)
    assert caught.value.reason == pb.ERROR_REASON_DATASET_CORRUPT


@pytest.mark.shelf
def test_a_server_looks_again_at_sighup_and_runs_go_on(
    root, replace, make_server, joined, wait_until, embedded, packhorse_lines
):
    topology = Topology(world_size=2)
    with make_server(root) as server, connect(server.target, retry=RetryPolicy(deadline_seconds=30)) as client:
        running = client.stream_bins("data", topology=topology)
        first = next(running)
        old = running.header.digest
        replace("rows")
        server.process.send_signal(signal.SIGHUP)

        def newest():  # of a client that nothing binds yet
            with connect(server.target) as another:
                return another.get_dataset("data")

        info = wait_until(lambda: (found := newest()).num_sequences == 2000 and found)
        assert info.older_digests == (old,)
        assert client.get_dataset("data").digest == old, "the first answer binds"
        expected = list(embedded.stream_bins("few", topology=topology))
        assert joined([first, *running]) == joined(expected)
        again = client.stream_bins("data", topology=topology, expected_digest=old)  # as a cursor does
        assert joined(again) == joined(expected)
        assert client.stream_bins("data").header.digest == old
        with connect(server.target) as another:
            assert another.stream_bins("data").header.digest == info.digest
        with pytest.raises(DigestMismatchError):
            client.get_bins("data", positions=[0], expected_digest=old[:-1] + "x")
        (listed,) = packhorse_lines("inspect", "--target", server.target)
        assert (listed["digest"], listed["older_digests"]) == (info.digest, [old])
        assert server.process.poll() is None
        assert "data was replaced: new runs get digest" in server.log()


@pytest.fixture
def packhorse_lines():
    """Function: the JSON that a command prints."""
    from click.testing import CliRunner

    from packhorse.cli import main

    def run(*arguments):
        return json.loads(CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False).stdout)

    return run
