"""A server that is killed and started again under a hundred streams."""

import threading

import pytest

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
