"""A server of several processes: one address, one limit, one set of metrics, and no process that matters."""

import contextlib
import json
import logging
import os
import re
import resource
import shutil
import signal
import threading
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from tests.faulty_server import Faults

from packhorse.client import DigestMismatchError, RetryPolicy, StreamInterruptedError, connect
from packhorse.client.errors import DatasetNotFoundError, TooManyStreamsError
from packhorse.server.app import sibling
from packhorse.server.app.config import ServeConfig
from packhorse.topology import Topology

PATIENT = RetryPolicy(deadline_seconds=60)


def children_of(server):
    """Process ids of a server's processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(_stat(folder.name)[1]) == server.pid:
                found.append(int(folder.name))
    return sorted(found)


def _stat(pid):
    """State, parent and more of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_alive(pid):
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(corpus, make_server):
    with make_server(corpus.root, "--processes", "2", "--metrics-listen", "127.0.0.1:0") as server:
        yield server
        server.stop()


@pytest.fixture(scope="module")
def lasting_server(corpus, make_server):
    """Its streams last, and so do its processes' limits: both are faults."""
    faults = Faults(steps_per_block=2, block_seconds=0.03, descriptors=(256, 4096))
    with make_server(corpus.root, "--processes", "2", "--metrics-listen", "127.0.0.1:0", faults=faults) as server:
        yield server


def scraped(server):
    """(name, label values) → value of everything that Prometheus is told."""
    with urllib.request.urlopen(server.metrics_url, timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def read_all(server, topology, epoch):
    """Every rank's bins, each over a connection of its own, all at once: rank → [(position, ids)]."""
    bins = {}

    def read(rank):
        with connect(server.target, retry=PATIENT) as client:
            stream = client.stream_bins("rows", epoch=epoch, seed=4, rank=rank, topology=topology)
            bins[rank] = [
                (position, ids.tolist())
                for block in stream
                for position, (ids, _) in zip(block.positions.tolist(), block.bins(), strict=True)
            ]

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(topology.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return bins


@pytest.mark.realtime
def test_a_process_that_knows_only_the_new_version_leads_to_its_sibling(
    corpus, make_server, tmp_path, wait_until, joined
):
    """A folder is replaced, and of two processes one is killed: a run finds the old version at the other."""
    root = tmp_path / "root"
    shutil.copytree(corpus.root / "few", root / "data")
    with make_server(root, "--processes", "2") as server, connect(server.target, retry=PATIENT) as client:
        old = client.get_dataset("data")
        whole = joined(client.stream_bins("data"))
        shutil.copytree(corpus.root / "rows", root / ".new")
        (root / "data").rename(root / ".old")
        (root / ".new").rename(root / "data")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("data was replaced") == 2)
        killed, kept = children_of(server)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(children_of(server)) == 2 and killed not in children_of(server))
        wait_until(lambda: {older_digests_at_a_new_connection(server) for _ in range(30)} == {(old.digest,), ()})
        for _ in range(20):
            with connect(server.target, retry=PATIENT) as other:
                assert joined(other.stream_bins("data", expected_digest=old.digest)) == whole
        assert kept in children_of(server)
        os.kill(kept, signal.SIGKILL)
        with (
            connect(server.target, retry=PATIENT) as other,
            pytest.raises(DigestMismatchError, match=r"or start a new run$"),
        ):
            other.get_bins("data", positions=[0], expected_digest=old.digest)


def older_digests_at_a_new_connection(server):
    """Which older versions the process has that a new connection leads to."""
    with connect(server.target, retry=PATIENT) as client:
        return client.get_dataset("data").older_digests


def test_what_the_processes_take_is_summed_and_health_is_that_of_any(server, wait_until):
    def memory_of_children():
        statuses = [Path(f"/proc/{child}/status").read_text() for child in children_of(server)]
        return sum(int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10 for status in statuses)

    def summed():
        """What is told, once each process has measured its memory, which it does every few seconds."""
        found, own = scraped(server), memory_of_children()
        is_memory_told = 0.7 * own < found.get(("packhorse_memory_bytes",), 0) < 1.3 * own
        return is_memory_told and found["packhorse_open_files_limit",] and found

    found = wait_until(summed)
    assert len(children_of(server)) == found["packhorse_serving",] == 2
    assert found["packhorse_open_files",] < found["packhorse_open_files_limit",], "of one process each"
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(connect(server.target)) for _ in range(6)]
        for client in clients:
            client.list_datasets()
        wait_until(lambda: scraped(server)["packhorse_connections",] >= len(clients))
    with urllib.request.urlopen(server.metrics_url.replace("/metrics", "/healthz"), timeout=20) as answer:
        assert answer.read() == b"SERVING\n"


@pytest.mark.long
def test_one_status_page_shows_all_processes(corpus, make_server, wait_until):
    page_files = pytest.importorskip("packhorse.analysis").page_files
    lasting = Faults(steps_per_block=2, block_seconds=0.3)
    every = Topology(world_size=8, mode="independent")
    flags = ("--processes", "2", "--metrics-listen", "127.0.0.1:0")
    with make_server(corpus.root, *flags, faults=lasting) as server, contextlib.ExitStack() as opened:

        def document():
            url = server.metrics_url.removesuffix("/metrics") + "/status.json"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)

        for rank in range(8):  # each over a connection of its own, which the kernel spreads over the processes
            client = opened.enter_context(connect(server.target, retry=PATIENT))
            next(opened.enter_context(client.stream_bins("rows", rank=rank, topology=every)))
        with (
            pytest.raises(DatasetNotFoundError),
            connect(server.target, retry=RetryPolicy(deadline_seconds=0)) as client,
        ):
            client.get_dataset("nothing")
        found = wait_until(lambda: len((seen := document())["activity"]["streams"]) == 8 and seen)
        Draft202012Validator(json.loads(page_files()["status.schema.json"][1])).validate(found)
        shown = found["activity"]["servers"]
        assert len({each["process"] for each in shown}) == found["server"]["num_processes"] == 2
        assert sum(each["streams"] for each in shown) == 8
        (run,) = found["activity"]["runs"]
        assert (run["open_ranks"], run["open_streams"]) == (8, 8)
        assert found["server"]["is_serving"]
        assert found["server"]["refused_calls"] == {"DATASET_NOT_FOUND": 1}
        assert [each["name"] for each in found["datasets"]] == ["few", "named", "rows", "truncated"]


def test_a_process_that_cannot_answer_its_parent_goes_on():
    def fails():
        raise TimeoutError("the loop is busy")  # an OSError, as that of a parent that is gone

    assert sibling._tried(fails) is None


def test_many_streams_of_two_processes_are_one_epoch(server, embedded):
    before = scraped(server)
    topology = Topology(world_size=12, batch_size=1)
    bins = read_all(server, topology, epoch=1)
    for rank in range(12):
        stream = embedded.stream_bins("rows", epoch=1, seed=4, rank=rank, topology=topology)
        assert [ids for _, ids in bins[rank]] == [ids.tolist() for block in stream for ids, _ in block.bins()]
    seen = Counter(i for of_rank in bins.values() for _, ids in of_rank for i in ids)
    assert seen == Counter(range(2000))
    after = scraped(server)
    assert (
        after["packhorse_sequences_streamed_total", "rows"]
        - before.get(("packhorse_sequences_streamed_total", "rows"), 0)
        == 2000
    )
    assert after["packhorse_first_block_seconds_count",] - before["packhorse_first_block_seconds_count",] == 12
    assert after["packhorse_dataset_sequences", "rows"] == 2000


@pytest.mark.realtime
def test_clients_go_on_where_processes_are_killed_and_metrics_forget_nothing(
    lasting_server, embedded, wait_until, caplog
):
    server, told_before = lasting_server, lasting_server.log()
    caplog.set_level(logging.WARNING, "packhorse")
    topology = Topology(world_size=6)
    streams, firsts = [], []
    with connect(server.target, retry=PATIENT) as one, connect(server.target, retry=PATIENT) as other:
        for rank in range(6):
            client = one if rank % 2 else other
            streams.append(client.stream_bins("rows", epoch=2, seed=4, rank=rank, topology=topology))
            firsts.append(next(streams[-1]))
        killed = children_of(server)
        os.kill(killed[0], signal.SIGKILL)
        wait_until(lambda: len(children_of(server)) == 2 and killed[0] not in children_of(server))
        os.kill(killed[1], signal.SIGKILL)
        for rank, (first, stream) in enumerate(zip(firsts, streams, strict=True)):
            whole = embedded.stream_bins("rows", epoch=2, seed=4, rank=rank, topology=topology)
            bins = [ids.tolist() for block in (first, *stream) for ids, _ in block.bins()]
            assert bins == [ids.tolist() for block in whole for ids, _ in block.bins()]
        assert "answered again after" in caplog.text
        wait_until(
            lambda: scraped(server).get(("packhorse_active_streams", "StreamBins")) == 0
        )  # absent where none of them lives
        wait_until(lambda: scraped(server).get(("packhorse_dataset_bins", "rows")))
        assert scraped(server)["packhorse_bins_streamed_total", "rows"] >= sum(map(len, firsts))
        told = server.log().removeprefix(told_before)
        told = re.findall(r"process \d of 2 \(pid (\d+)\) was killed by SIGKILL; starting another in", told)
        assert sorted(map(int, told)) == sorted(killed)


@pytest.mark.long
def test_the_limit_of_streams_holds_over_all_processes_which_end_with_their_parent(corpus, make_server, wait_until):
    lasting = Faults(steps_per_block=2, block_seconds=1)
    hasty = RetryPolicy(deadline_seconds=0)
    with (
        make_server(corpus.root, "--processes", "2", "--max-streams", "3", faults=lasting) as server,
        contextlib.ExitStack() as opened,
    ):
        streams = []
        for number in range(8):  # connections of their own, which the kernel spreads over the processes
            client = opened.enter_context(connect(server.target, retry=hasty))
            stream = client.stream_bins("rows")
            if number < 3:
                next(stream)
                streams.append(stream)
                continue
            with pytest.raises(StreamInterruptedError, match="3 streams are open") as caught:
                next(stream)
            assert isinstance(caught.value.__cause__, TooManyStreamsError)
        streams.pop().close()
        late = opened.enter_context(connect(server.target, retry=PATIENT)).stream_bins("rows")
        assert next(late).steps
        children = children_of(server)
        server.kill()
        wait_until(lambda: not any(map(is_alive, children)))


@pytest.mark.realtime
def test_sigterm_drains_all_processes(server):
    """The last to use the server of this module."""
    children = children_of(server)
    assert len(children) == 2
    with connect(server.target, retry=RetryPolicy(deadline_seconds=0)) as client:
        assert client.get_dataset("few").num_sequences == 7
    server.terminate()
    assert server.wait(30) == 0
    assert not any(map(is_alive, children))
    assert "Traceback" not in server.log()


def test_faults_reach_every_process_and_those_that_replace_them(lasting_server, wait_until):
    """Or the tests that have some would show nothing."""
    killed, _ = wait_until(lambda: len(found := children_of(lasting_server)) == 2 and found)
    os.kill(killed, signal.SIGKILL)
    children = wait_until(lambda: len(found := children_of(lasting_server)) == 2 and killed not in found and found)
    for child in children:
        wait_until(lambda: resource.prlimit(child, resource.RLIMIT_NOFILE) == (4096, 4096))  # noqa: B023


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"processes": 2, "listen": "unix:/s"}, "processes=2 needs listen='HOST:PORT': a unix socket belongs to one"),
    ],
)
def test_what_processes_cannot_share_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ServeConfig(data_root=tmp_path, **options)
