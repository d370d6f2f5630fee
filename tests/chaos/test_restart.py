"""A server that is killed and started again under a hundred streams, and two that are restarted in turn."""

import re
import threading

import load
import numpy as np
import pytest
from tests.waiting import wait_until

from packhorse.client import RetryPolicy, connect

pytestmark = pytest.mark.realtime

NUM_STREAMS = 100
PATIENT = RetryPolicy(deadline_seconds=100)


def test_every_stream_goes_on_after_a_restart(corpus, make_server, joined, client):
    """Each stream has connections of its own, as the workers of a cluster have; every one gets all of its bins."""
    whole = joined(client.stream_bins("named"))
    with make_server(corpus.root) as server:
        clients = [connect(server.target, retry=PATIENT) for _ in range(NUM_STREAMS)]
        streams = [one.stream_bins("named") for one in clients]
        blocks = [[next(stream)] for stream in streams]
        server.kill()
        reading = [
            threading.Thread(target=lambda came=came, stream=stream: came.extend(stream))
            for came, stream in zip(blocks, streams, strict=True)
        ]
        for thread in reading:
            thread.start()
        server.start()
        for thread in reading:
            thread.join(100)
        assert not any(thread.is_alive() for thread in reading)
        assert all(joined(came) == whole for came in blocks)
        for one in clients:
            one.close()


@pytest.mark.long
def test_a_rolling_restart_of_two_replicas_loses_nothing(attacked_root, make_server):
    """Both are restarted in turn, as Kubernetes does, while eight ranks are within an epoch too large for any buffer.

    How long a rank waits is measured by tests/benchmarks/bench_rolling_restart.py.
    """
    num_sequences = 2_000_000
    with make_server(attacked_root) as first, make_server(attacked_root) as second:
        target = f"{first.target},{second.target}"
        with load.Readers(target, "dense", steps_per_second=150) as readers:
            for server in (first, second):
                wait_until(lambda: 0.1 < readers.num_sequences / num_sequences % 1 < 0.4)
                server.terminate()
                assert server.wait() == 0
                server.start()
        assert not readers.failures
        assert readers.complete_epochs()
        for ids in readers.complete_epochs():
            assert np.array_equal(np.bincount(ids), np.ones(num_sequences))
        opened_within = [len(re.findall("stream opened.* step=[1-9]", each.log())) for each in (first, second)]
        assert sum(opened_within) >= load.NUM_STREAMS // 2
