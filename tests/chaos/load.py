"""Load on a real server: streams that must not suffer, and requests meant to make them.

Owns the readers, which check every id they get, and one function for each attack. Used by the tests beside it and by
tests/benchmarks/bench_attacks.py.
"""

import contextlib
import functools
import itertools
import threading
import time

import grpc
import numpy as np

from packhorse.client import RetryPolicy, Server
from packhorse.client.transport.requests import topology_message
from packhorse.topology import BatchPhase, BatchSchedule, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

NUM_STREAMS = 8
NUM_SEQUENCES = 250_000
SERVICE = "/packhorse.v1.PackingService/"
_SEEDS = itertools.count(1)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 65 << 20),
    ("grpc.max_send_message_length", 65 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # each attacker has a connection of its own
)


def prepare_datasets(root, num_sequences=NUM_SEQUENCES, num_wide=100_000):
    """Writes datasets: `many` sequences, `wide` with many distinct lengths, `dense` with 341 sequences in every bin."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    random = np.random.default_rng(1)
    kinds = {
        "many": (random.integers(1, 400, num_sequences), 1024),
        "wide": (random.permutation(130_000)[:num_wide] + 1, 131_072),
        "dense": (np.full(2_000_000, 3), 1024),
    }
    for name, (lengths, max_seq_len) in kinds.items():
        path = root / f"{name}.parquet"
        pq.write_table(pa.table({"n": lengths}), path)
        prepare(
            path,
            length_column="n",
            max_seq_len=max_seq_len,
            output=root / "data" / name,
            algorithm="best-fit",
            progress=False,
        )
    return root / "data"


class Readers:
    """Threads that read one epoch after the other, each as another rank, and keep what came.

    Args:
        target: the server.
        dataset: of it.
        num_streams: threads.
        steps_per_second: of each, as of a rank that trains; None for as fast as they come.
        access: certificates and tokens.
    """

    def __init__(self, target, dataset="many", num_streams=NUM_STREAMS, *, steps_per_second=None, access=None):
        self.num_sequences = 0
        self.longest_wait_seconds = 0.0
        """For a block, of all threads; set it to 0 where a measurement begins."""
        self.failures = []
        self._steps_per_second = steps_per_second
        self._epochs = {}  # (epoch, rank) -> ids
        self._dataset, self._num_streams, self._access = dataset, num_streams, access
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(target, rank)) for rank in range(num_streams)]

    def _read(self, target, rank):
        try:
            server = Server(target, retry=RetryPolicy(deadline_seconds=60), access=self._access)
            with server.open() as client:
                for epoch in itertools.count():
                    parts, asked = [], time.perf_counter()
                    for block in client.stream_bins(
                        self._dataset, epoch=epoch, rank=rank, topology=Topology(world_size=self._num_streams)
                    ):
                        parts.append(block.ids)
                        with self._lock:
                            self.num_sequences += len(block.ids)
                            self.longest_wait_seconds = max(self.longest_wait_seconds, time.perf_counter() - asked)
                        if self._steps_per_second is not None:
                            time.sleep(len(block.steps) / self._steps_per_second)
                        asked = time.perf_counter()
                    self._epochs[epoch, rank] = np.concatenate(parts)
                    if self._stopping.is_set():
                        return
        except Exception as error:
            self.failures.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def rate(self, seconds):
        """Sequences a second, over the next seconds."""
        before, begin = self.num_sequences, time.perf_counter()
        time.sleep(seconds)
        return (self.num_sequences - before) / (time.perf_counter() - begin)

    def complete_epochs(self):
        """Ids of every epoch that all ranks have read to the end."""
        epochs = [epoch for epoch, rank in self._epochs if rank == 0]
        whole = [e for e in sorted(epochs) if all((e, r) in self._epochs for r in range(self._num_streams))]
        return [np.concatenate([self._epochs[e, r] for r in range(self._num_streams)]) for e in whole]


@contextlib.contextmanager
def under(attack, target, num_attackers):
    """Runs an attack in threads, again and again, until the block ends; gives a Counter-like dict of outcomes."""
    stopping = threading.Event()
    outcomes = {}

    def run():
        with grpc.insecure_channel(target, CHANNEL_OPTIONS) as channel:
            while not stopping.is_set():
                try:
                    outcome = attack(channel, stopping)
                except grpc.RpcError as error:
                    outcome = error.code().name
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if outcome != "OK":
                    time.sleep(0.05)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(num_attackers)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stopping.set()
        for thread in threads:
            thread.join(30)


def _finished(call, stopping):
    """Waits for an answer or for the end of the attack; the caller then leaves."""
    while not stopping.wait(0.02):
        if call.done():
            call.result()
            return "OK"
    call.cancel()
    return "left"


def locate_everywhere(channel, stopping):
    """10,000 ids, a step of a million bins."""
    topology = topology_message(Topology(world_size=1 << 20))
    request = pb.LocateSequencesRequest(dataset="many", ids=range(10_000), topology=topology)
    return _finished(packing_pb2_grpc.PackingServiceStub(channel).LocateSequences.future(request), stopping)


def locate_among_many_lengths(channel, stopping):
    """As many ids as are allowed of a dataset with tens of thousands of lengths, none of which it has."""
    request = pb.LocateSequencesRequest(dataset="wide", ids=range(10**9, 10**9 + 1_300))
    return _finished(packing_pb2_grpc.PackingServiceStub(channel).LocateSequences.future(request), stopping)


def get_large_bins(channel, stopping):
    """Answers near the largest there may be, read."""
    request = pb.GetBinsRequest(dataset="dense", positions=[0] * 16_000, wire_version=WIRE_VERSION)
    return _finished(packing_pb2_grpc.PackingServiceStub(channel).GetBins.future(request), stopping)


def get_large_bins_unread(channel, stopping):
    """Answers near the largest there may be, never read."""
    method = channel.unary_stream(SERVICE + "GetBins", pb.GetBinsRequest.SerializeToString, bytes)
    call = method(pb.GetBinsRequest(dataset="dense", positions=[0] * 16_000, wire_version=WIRE_VERSION))
    return _unread(call, stopping)


def stream_large_steps_unread(channel, stopping):
    """Streams whose every block has 12 MB, never read."""
    topology = topology_message(Topology(batch_size=2_900, remainder="drop"))
    request = pb.StreamBinsRequest(dataset="dense", topology=topology, wire_version=WIRE_VERSION)
    method = channel.unary_stream(SERVICE + "StreamBins", pb.StreamBinsRequest.SerializeToString, bytes)
    return _unread(method(request), stopping)


def _unread(call, stopping):
    """Waits for a refusal or for the end of the attack."""
    while not stopping.wait(0.05):
        if not call.is_active():
            return call.code().name
    call.cancel()
    return "left"


def _stream(channel, stopping, request):
    """Reads a stream of a seed that nobody else has."""
    method = channel.unary_stream(SERVICE + "StreamBins")  # bytes: what attackers do counts as little as can be
    call = method(request + pb.StreamBinsRequest(seed=next(_SEEDS)).SerializeToString())
    for _ in call:
        if stopping.is_set():
            call.cancel()
            return "left"
    return "OK"


@functools.cache
def _request(num_skips=0, **shape):
    """The bytes of a request, which another message's may follow."""
    skip = [pb.PositionRange(first=4 * i, end=4 * i + 1) for i in range(num_skips)]
    topology = topology_message(Topology(**shape))
    return pb.StreamBinsRequest(
        dataset="many", topology=topology, wire_version=WIRE_VERSION, skip=skip
    ).SerializeToString()


def stream_balanced(channel, stopping):
    """A thousand ranks' windows, arranged for one that reads."""
    return _stream(channel, stopping, _request(world_size=1024, batch_size=8, balance="micro_step"))


def stream_a_long_schedule(channel, stopping):
    """A batch size that changes a thousand times, and a balance of every size."""
    stages = tuple(BatchPhase(100 * i, False, 128 + 128 * (i % 7)) for i in range(1000))
    return _stream(
        channel, stopping, _request(world_size=128, batch_schedule=BatchSchedule(stages), balance="micro_step")
    )


def fill_a_million_ranks(channel, stopping):
    """An epoch that is one step, which is not full."""
    return _stream(channel, stopping, _request(world_size=1 << 20))


def skip_a_thousand_ranges(channel, stopping):
    """As many ranges as may be."""
    return _stream(channel, stopping, _request(num_skips=1000, world_size=1024))


def skip_too_many_ranges(channel, stopping):
    """As many ranges as a message holds."""
    one = pb.StreamBinsRequest(skip=[pb.PositionRange(first=10**9, end=10**9 + 1)])
    return _stream(channel, stopping, _request(world_size=1024) + 280_000 * one.SerializeToString())


def pack_many_lengths(channel, stopping):
    """A million lengths, of which as many are distinct as may be."""
    call = channel.unary_unary(SERVICE + "PackSequences", None, pb.PackSequencesResponse.FromString)
    return _finished(call.future(_many_lengths()), stopping)


@functools.cache
def _many_lengths():
    """The request's bytes, made once: whoever makes them has this process, and so the readers' time, for 0.3 s."""
    lengths = np.random.default_rng(0).integers(1, 1 << 17, 1_000_000)
    return pb.PackSequencesRequest(lengths=lengths, max_seq_len=1 << 17).SerializeToString()


def pack_optimally(channel, stopping):
    """Small requests that search for seconds."""
    lengths = np.random.default_rng(0).integers(131, 59_000, 1_400).tolist()
    request = pb.PackSequencesRequest(lengths=lengths, max_seq_len=131_071, algorithm="optimal")
    return _finished(packing_pb2_grpc.PackingServiceStub(channel).PackSequences.future(request), stopping)


def pack_online(channel, stopping):
    """One message of 100,000 lengths that no two fill a bin with: some 20 minutes of one core."""
    lengths = np.random.default_rng(0).integers(44_564, 47_185, 100_000)
    options = pb.PackStreamOptions(max_seq_len=131_071, lookahead_sequences=10_000, wire_version=WIRE_VERSION)
    messages = [
        pb.PackStreamRequest(options=options),
        pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=range(100_000), lengths=lengths)),
    ]

    def send():
        yield from messages
        stopping.wait()

    call = packing_pb2_grpc.PackingServiceStub(channel).PackStream(send())
    next(call)
    stopping.wait()
    call.cancel()
    return "left"


def send_junk(channel, stopping):
    """Requests that are no protocol messages."""
    method = channel.unary_unary(SERVICE + "GetBins", lambda data: data, lambda data: data)
    return method(b"\xff" * 50, timeout=20)


def come_and_leave(channel, stopping):
    """A stream that is abandoned after its header."""
    request = pb.StreamBinsRequest(dataset="many", topology=topology_message(Topology()), wire_version=WIRE_VERSION)
    call = packing_pb2_grpc.PackingServiceStub(channel).StreamBins(request)
    next(call)
    call.cancel()
    return "OK"


ATTACKS = {
    "StreamBins, balanced over 1,024 ranks": (stream_balanced, 4),
    "StreamBins, a schedule of 1,000 phases": (stream_a_long_schedule, 4),
    "StreamBins, a million ranks": (fill_a_million_ranks, 4),
    "StreamBins, 1,000 skipped ranges": (skip_a_thousand_ranges, 4),
    "StreamBins, 280,000 skipped ranges": (skip_too_many_ranges, 4),
    "LocateSequences, 10,000 ids, a million ranks": (locate_everywhere, 4),
    "LocateSequences, 100,000 distinct lengths": (locate_among_many_lengths, 4),
    "GetBins, 60 MB answers": (get_large_bins, 4),
    "PackSequences, 1,000,000 lengths": (pack_many_lengths, 2),
    'PackSequences, "optimal"': (pack_optimally, 20),
    "PackStream, 100,000 lengths in a message": (pack_online, 2),
    "undecodable requests": (send_junk, 4),
    "clients that leave": (come_and_leave, 4),
}
"""Name → (attack, attackers)."""
