"""Consumers that stop reading: the server's memory stays bounded, and a drain does not wait for them."""

from collections import Counter

import numpy as np
import pytest

from packhorse.client import RetryPolicy, connect

pytestmark = pytest.mark.realtime

NUM_SEQUENCES = 2_000_000  # 16 MB a stream: far more than sockets and flow control hold
NUM_STREAMS = 50
PER_STREAM_BYTES = 4 << 20
PATIENT = RetryPolicy(deadline_seconds=60, first_delay_seconds=0.02, most_delay_seconds=0.5)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    folder = tmp_path_factory.mktemp("large")
    lengths = np.random.default_rng(1).integers(1, 200, NUM_SEQUENCES)
    pq.write_table(pa.table({"n": lengths}), folder / "n.parquet")
    output = folder / "root" / "large"
    prepare(folder / "n.parquet", length_column="n", max_seq_len=1024, output=output, progress=False)
    return folder / "root"


@pytest.mark.long
def test_idle_streams_hold_little_and_do_not_hold_up_a_drain(large, make_server, memory_bytes, wait_until):
    with make_server(large, "--grace-seconds", "1") as server, connect(server.target, retry=PATIENT) as client:
        for block in client.stream_bins("large", seed=99):  # whatever is made once
            assert len(block)
        before = memory_bytes(server.pid)
        streams = [client.stream_bins("large", seed=seed) for seed in range(NUM_STREAMS)]
        consumed = [[next(stream).ids] for stream in streams]
        seen = []

        def is_settled():
            seen.append(memory_bytes(server.pid))
            return len(seen) > 25 and seen[-1] <= min(seen[-25:]) + (1 << 20)

        wait_until(is_settled, 60)
        assert max(seen) - before < NUM_STREAMS * PER_STREAM_BYTES
        assert NUM_STREAMS * NUM_SEQUENCES * 8 > 3 * NUM_STREAMS * PER_STREAM_BYTES

        server.terminate()
        assert server.wait() == 0
        server.start()
        for stream, parts in list(zip(streams, consumed, strict=True))[:2]:
            parts += [block.ids for block in stream]
            assert Counter(np.bincount(np.concatenate(parts))) == {1: NUM_SEQUENCES}


def test_little_is_handed_out_to_a_consumer_that_does_not_read(large, make_server, wait_until):
    ask_activity = pytest.importorskip("packhorse.proof").ask_activity
    with make_server(large) as server, connect(server.target, retry=PATIENT) as client:
        stream = client.stream_bins("large", seed=1)
        next(stream)
        seen = []

        def is_settled():
            (activity,) = ask_activity(server.target)
            seen.append([each.next_step for each in activity.streams])
            return len(seen) > 25 and seen[-1] == seen[-25]

        wait_until(is_settled, 60)
        ((next_step,),) = seen[-1:]
        assert next_step * 4 < stream.header.num_steps


def test_a_drain_does_not_wait_for_those_that_do_not_read(large, make_server):
    with make_server(large, "--grace-seconds", "100") as server, connect(server.target, retry=PATIENT) as client:
        streams = [client.stream_bins("large", seed=seed) for seed in range(8)]
        for stream in streams:
            next(stream)
        server.terminate()
        assert server.wait(20) == 0
