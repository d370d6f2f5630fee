"""Replicas that serve different data under one name are never mixed within a run."""

import multiprocessing
import shutil
import urllib.request
from contextlib import suppress

import pytest
import torch
from torch.utils.data import DataLoader

from packhorse.client import DigestMismatchError, PackedBins, PackedDataset, connect
from packhorse.client._run_id import run_id_of

WORLD_SIZE = 6


@pytest.fixture(scope="module")
def replicas(corpus, make_server, tmp_path_factory):
    """Two servers with different data named "data", and their digests."""
    roots = [tmp_path_factory.mktemp(name) for name in "ab"]
    for root, name in zip(roots, ("rows", "few"), strict=True):
        shutil.copytree(corpus.root / name, root / "data")
    with (
        make_server(roots[0], "--metrics-listen", "127.0.0.1:0") as a,
        make_server(roots[1], "--metrics-listen", "127.0.0.1:0") as b,
    ):
        yield a, b


@pytest.fixture
def digests(replicas):
    """Of each replica."""
    found = []
    for server in replicas:
        with connect(server.target) as client:
            found.append(client.get_dataset("data").digest)
    return found


def test_the_first_answer_binds_every_later_call(replicas, digests):
    """Replicas are asked in random order: unbound, twenty answers agree once in half a million times."""
    target = ",".join(server.target for server in replicas)
    with connect(target) as client:
        first = client.get_dataset("data")
        for _ in range(10):
            assert client.get_dataset("data").digest == first.digest
            assert client.stream_bins("data").header.digest == first.digest
            assert client.get_bins("data", positions=[0]).ids.size
            assert client.locate("data", ids=[3])[0].found
        for digest in digests:  # those who say what they expect get it
            assert client.stream_bins("data", expected_digest=digest).header.digest == digest
    for digest in digests:
        with connect(target) as client:
            client.bind("data", digest)
            assert {client.get_dataset("data").digest for _ in range(10)} == {digest}
            with pytest.raises(DigestMismatchError):
                client.bind("data", "of another")
    with connect(replicas[0].target) as client:
        client.bind("data", digests[1])
        for call in (
            lambda: client.get_dataset("data"),
            lambda: client.get_bins("data", positions=[0]),
            lambda: client.locate("data", ids=[3]),
            lambda: client.stream_bins("data").header,
        ):
            with pytest.raises(DigestMismatchError, match="is not the one that answered this client before"):
                call()


def dataset_at(target, corpus, **options):
    return PackedDataset(target, "data", str(corpus.megatron), batch_size=1, **options)


def test_workers_of_one_loader_read_one_dataset(corpus, replicas, digests):
    target = ",".join(server.target for server in replicas)
    read = set()
    for _ in range(3):
        loader = DataLoader(dataset_at(target, corpus, rank=(0, 1)), batch_size=None, num_workers=4, timeout=60)
        with suppress(DigestMismatchError):  # of workers that opened at the same moment
            found = {batch["cursor"]["digest"] for batch in loader}
            assert len(found) == 1
            read |= found
    assert read <= set(digests)


def _rank(rank, target, tokens, store, results):
    try:
        if store is not None:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE
            )
        dataset = PackedDataset(target, "data", tokens, batch_size=1, rank=(rank, WORLD_SIZE))
        digest = next(iter(dataset))["cursor"]["digest"]
        results.put((rank, digest))
    except DigestMismatchError as error:
        results.put((rank, error))


def run_ranks(targets, corpus, store, environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(
            target=_rank, args=(rank, targets[rank % len(targets)], str(corpus.megatron), store, results), daemon=True
        )
        for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=200) for _ in processes)
    for process in processes:
        process.join(60)
    return found


@pytest.mark.long
def test_ranks_of_a_process_group_read_one_dataset_or_say_so(corpus, replicas, digests, tmp_path, monkeypatch):
    everywhere = [",".join(server.target for server in replicas)]
    found = run_ranks(everywhere, corpus, tmp_path / "one", {}, monkeypatch)
    assert len(set(found.values())) == 1
    assert found[0] in digests
    apart = [server.target for server in replicas]  # each rank has a replica beside it
    found = run_ranks(apart, corpus, tmp_path / "other", {}, monkeypatch)
    refused = sorted(rank for rank, each in found.items() if isinstance(each, DigestMismatchError))
    assert refused in ([0, 2, 4], [1, 3, 5])
    assert len({each for each in found.values() if isinstance(each, str)}) == 1


@pytest.mark.long
def test_the_metrics_show_two_digests_in_one_run_without_a_process_group(corpus, replicas, digests, monkeypatch):
    job = {"SLURM_JOB_ID": "4711"}
    found = run_ranks([server.target for server in replicas], corpus, None, job, monkeypatch)
    assert set(found.values()) == set(digests)
    shown = ""
    for server in replicas:
        with urllib.request.urlopen(server.metrics_url, timeout=20) as answer:
            shown += answer.read().decode()
    for digest in digests:
        assert f'packhorse_run_digest{{dataset="data",digest="{digest}",run="{run_id_of(job)}"}} 1.0' in shown


class FakeStore:
    """The store of a process group, in this process."""

    def __init__(self):
        self.values = {}

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key].encode()

    def compare_set(self, key, expected, desired):
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()


def test_the_first_rank_says_which_dataset_all_read(corpus, replicas, digests, monkeypatch):
    from packhorse.client.loading import _agreement

    store = FakeStore()
    monkeypatch.setattr(_agreement, "_store", lambda: store)
    a, b = (server.target for server in replicas)
    both = f"{a},{b}"

    def digest_of(rank, target):
        monkeypatch.setattr(_agreement, "_NUM_MADE", _agreement.Counter())  # each rank is a process
        return next(iter(dataset_at(target, corpus, rank=(rank, 4))))["cursor"]["digest"]

    assert digest_of(0, b) == digests[1]
    assert [digest_of(rank, both) for rank in (1, 2, 3)] == [digests[1]] * 3
    with pytest.raises(DigestMismatchError):
        digest_of(1, a)
    assert len(store.values) == 1
    cursor = next(iter(dataset_at(both, corpus, rank=(0, 1))))["cursor"]
    resumed = dataset_at(both, corpus, rank=(1, 4))
    other = digests[0] if digests[1] == cursor["digest"] else cursor["digest"]
    resumed.load_state_dict(cursor | {"digest": other, "position": 0})
    assert next(iter(resumed))["cursor"]["digest"] == other, "a cursor says itself which dataset it is of"


def test_ranks_that_read_bins_by_position_agree_too(corpus, replicas, digests, monkeypatch):
    from packhorse.client.loading import _agreement

    store = FakeStore()
    monkeypatch.setattr(_agreement, "_store", lambda: store)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    a, b = (server.target for server in replicas)

    def cursor_of(target):
        monkeypatch.setattr(_agreement, "_NUM_MADE", _agreement.Counter())  # each rank is a process
        return PackedBins(target, "data", corpus.megatron).cursor_after(0)

    assert cursor_of(b)["digest"] == digests[1]
    assert cursor_of(f"{a},{b}")["digest"] == digests[1]
    with pytest.raises(DigestMismatchError):
        cursor_of(a)
