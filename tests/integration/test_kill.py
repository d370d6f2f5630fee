"""Servers that die, drain or stay away, under clients that read."""

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter

import pytest
from tests.faulty_server import SLOW_SMALL_BLOCKS

from packhorse.client import RetryPolicy, StreamInterruptedError, connect
from packhorse.topology import Topology

pytestmark = pytest.mark.realtime

JOIN_SECONDS = 60
PATIENT = RetryPolicy(deadline_seconds=60, first_delay_seconds=0.02, most_delay_seconds=0.5)


class Reader(threading.Thread):
    """Reads one stream in small bites; waits at `gate` after its first block."""

    def __init__(self, target, gate, **arguments):
        super().__init__(daemon=True)
        self.target, self.gate, self.arguments = target, gate, arguments
        self.blocks, self.error = [], None
        self.has_begun = threading.Event()

    def run(self):
        try:
            with connect(self.target, retry=PATIENT) as client:
                for block in client.stream_bins("rows", **self.arguments):
                    self.blocks.append(block)
                    self.has_begun.set()
                    self.gate.wait(JOIN_SECONDS)
        except BaseException as error:
            self.error = error
            self.has_begun.set()

    def finish(self):
        self.join(JOIN_SECONDS)
        assert not self.is_alive()
        assert self.error is None, self.error


def assert_exactly_once_in_order(readers, bins_of_stream, batch_size, stride, corpus):
    came = Counter()
    for reader in readers:
        delivered = bins_of_stream(reader.blocks, batch_size, stride)
        places = [(d.step, d.slot) for d in delivered]
        assert places == sorted(set(places))
        for d in delivered:
            came.update(d.ids)
    assert came == Counter(corpus.ids["rows"].tolist())


def test_a_killed_server_costs_nothing(corpus, make_server, bins_of_stream, wait_until):
    """Six concurrent streams, two kills in their middle, the same port each time."""
    with make_server(corpus.root, faults=SLOW_SMALL_BLOCKS) as server:
        gate = threading.Event()
        topology = Topology(world_size=2, workers_per_rank=3, batch_size=2)
        readers = [
            Reader(server.target, gate, rank=rank, worker=worker, topology=topology, seed=8)
            for rank, worker in itertools.product(range(2), range(3))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            assert reader.has_begun.wait(JOIN_SECONDS)
            assert reader.error is None
        server.kill()
        num_opened = server.log().count("stream opened")
        gate.set()
        server.start()
        wait_until(lambda: server.log().count("stream opened") > num_opened)
        server.kill()
        server.start()
        for reader in readers:
            reader.finish()
        assert_exactly_once_in_order(readers, bins_of_stream, 2, 3, corpus)
        assert len(readers[0].blocks) > 5


READ_IN_PROCESS = """
import json, sys
from packhorse.client import RetryPolicy, connect
from packhorse.topology import Topology
target, rank = sys.argv[1], int(sys.argv[2])
with connect(target, retry=RetryPolicy(deadline_seconds=60, first_delay_seconds=0.02)) as client:
    stream = client.stream_bins("rows", rank=rank, topology=Topology(world_size=2), seed=8)
    print(json.dumps(next(stream).ids.tolist()), flush=True)
    sys.stdin.readline()
    for block in stream:
        print(json.dumps(block.ids.tolist()), flush=True)
"""


def test_a_killed_server_costs_processes_nothing(corpus, make_server):
    with make_server(corpus.root) as server:
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READ_IN_PROCESS, server.target, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            first = [json.loads(reader.stdout.readline()) for reader in readers]
            server.kill()
            for reader in readers:
                reader.stdin.write("go\n")
                reader.stdin.flush()
            server.start()
            came = Counter(itertools.chain(*first))
            for reader in readers:
                output, _ = reader.communicate(timeout=JOIN_SECONDS)
                assert reader.returncode == 0
                for line in output.splitlines():
                    came.update(json.loads(line))
            assert came == Counter(corpus.ids["rows"].tolist())
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate(timeout=JOIN_SECONDS)


def test_calls_wait_for_a_server_that_comes_back(corpus, make_server, embedded, joined):
    with make_server(corpus.root) as server, connect(server.target, retry=PATIENT) as client:
        assert client.list_datasets() == embedded.list_datasets()
        server.kill()
        restart = threading.Thread(target=server.start)
        restart.start()
        try:
            assert joined([client.get_bins("rows", positions=[3])]) == joined(
                [embedded.get_bins("rows", positions=[3])]
            )
        finally:
            restart.join(JOIN_SECONDS)


def test_after_the_deadline_the_error_says_where_to_begin_anew(corpus, make_server, bins_of_stream):
    topology = Topology(world_size=2, batch_size=3)
    with make_server(corpus.root, faults=SLOW_SMALL_BLOCKS) as server:
        impatient = RetryPolicy(deadline_seconds=0.5, first_delay_seconds=0.05)
        read, resume = [], []
        with connect(server.target, retry=impatient) as client:
            streams = [client.stream_bins("rows", rank=rank, topology=topology) for rank in range(2)]
            for stream in streams:
                read += bins_of_stream([next(stream) for _ in range(4)], 3)
            server.kill()
            for stream in streams:
                blocks = []
                with pytest.raises(StreamInterruptedError) as caught:
                    blocks.extend(stream)  # what had arrived before is still handed out
                read += bins_of_stream(blocks, 3)
                resume.append((caught.value.position, caught.value.step))
        position, step = min(resume)  # of one rank a block more may have arrived than of the other
        assert all(position == 6 * step > 0 for position, step in resume)
        consumed = Counter(i for d in read if d.step < step for i in d.ids)
        server.start()
        with connect(server.target, retry=impatient) as client:
            for rank in range(5):
                stream = client.stream_bins(
                    "rows", rank=rank, topology=Topology(world_size=5, batch_size=2, start_position=position)
                )
                for d in bins_of_stream(stream, 2):
                    consumed.update(d.ids)
    assert consumed == Counter(corpus.ids["rows"].tolist())
