"""Streaming over loopback into the Python client, beside the same gRPC stack with messages made beforehand.

Beside it what an id takes on the wire, and how fast the steps of a stream come one by one.
"""

import gc
import time
from collections.abc import Callable
from itertools import count, islice

import bare_server
import grpc
from harness import Row, Sample, interleaved
from workload import Workspace, in_words, serving, serving_recorded

from packhorse.client import connect
from packhorse.client.streams._templates import ReceivedTemplates
from packhorse.client.streams.blocks import decode_bins
from packhorse.client.transport.requests import topology_message
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION, block_context

NOTE = (
    "streaming: one `BinStream` with its blocks decoded, from `packhorse serve` in a process of its own; beside it a "
    "bare `grpc.aio` server, also a process of its own, which yields messages recorded from the very same stream to a "
    "bare stub whose reader decodes them likewise. Both read the same number of ids. Bytes per id: of the second half "
    "of these messages, beside what the same bins took in wire version 1: 4 bytes for each id and 4 for its length, 12 "
    "for each bin. Step by step: steps of 8 bins, each cut out of its block."
)
BATCH_SIZE = 32
STEP_BINS = 8
_RECORDED_MESSAGES = 400
_Request = pb.StreamBinsRequest


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    name = f"bench-{sizes.large}"
    epochs = count()

    def request() -> _Request:
        return _Request(
            dataset=name,
            epoch=next(epochs),
            seed=1,
            topology=topology_message(Topology(batch_size=BATCH_SIZE)),
            wire_version=WIRE_VERSION,
        )

    with serving(workspace.root_of(sizes.large)) as (address, _), grpc.insecure_channel(address) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        call = stub.StreamBins(request())
        messages = list(islice(call, _RECORDED_MESSAGES))
        call.cancel()
        recording = workspace.root / "recorded.messages"
        bare_server.save(messages, recording)
        half = messages[len(messages) // 2 :]
        num_ids = sum(m.block.num_sequences for m in half)
        bytes_per_id = sum(m.ByteSize() for m in half) / num_ids
        num_bins = sum(len(m.block.bins.templates) // 4 for m in half)
        old_bytes_per_id = 8 + 12 * num_bins / num_ids
        with (
            serving_recorded(recording) as (bare_address, _),
            grpc.insecure_channel(bare_address) as bare_channel,
            connect(address) as client,
        ):
            bare_stub = packing_pb2_grpc.PackingServiceStub(bare_channel)

            def ours() -> float:
                with client.stream_bins(
                    name, epoch=next(epochs), seed=1, topology=Topology(batch_size=BATCH_SIZE)
                ) as stream:
                    return million_ids_per_second(lambda: len(next(stream).ids), sizes.streamed_ids)

            def step_by_step() -> float:
                with client.stream_bins(
                    name, epoch=next(epochs), seed=1, topology=Topology(batch_size=STEP_BINS)
                ) as stream:
                    steps = (step for block in stream for step in block.split(STEP_BINS))
                    return million_ids_per_second(lambda: len(next(steps).ids), sizes.streamed_ids)

            def bare() -> float:
                responses = bare_stub.StreamBins(request())
                header, templates = next(responses).header, ReceivedTemplates()

                def read() -> int:
                    block = next(responses).block
                    context = block_context(header.checksum, block)
                    return len(decode_bins(block.bins, header.id_type, templates=templates, context=context).ids)

                found = million_ids_per_second(read, sizes.streamed_ids)
                responses.cancel()
                return found

            interleaved(1, ours, bare)
            our_rates, bare_rates, step_rates = interleaved(sizes.repeats, ours, bare, step_by_step)
    ours_sample, bare_sample = Sample(our_rates, "M ids/s"), Sample(bare_rates, "M ids/s")
    steps_sample = Sample(step_rates, "M ids/s")
    ratio = ours_sample.median / bare_sample.median
    return [
        Row(
            what="stream into the Python client",
            size=f"{in_words(sizes.large)} sequences, {in_words(sizes.streamed_ids)} ids read",
            ours=f"{ours_sample}; {ours_sample.median * bytes_per_id:.0f} MB/s",
            peer=f"{bare_sample}; {bare_sample.median * bytes_per_id:.0f} MB/s, bare grpc.aio, ready messages",
            ratio=ratio,
            target="≥ 0.35×",
            reached=ratio >= 0.35,
        ),
        Row(
            what="bytes on the wire for each id",
            size=f"{in_words(sizes.large)} sequences, {num_ids / num_bins:.1f} in a bin",
            ours=f"{bytes_per_id:.2f}",
            peer=f"{old_bytes_per_id:.2f}, wire version 1",
            ratio=old_bytes_per_id / bytes_per_id,
            target="≥ 1.67×",
            reached=bytes_per_id <= 0.6 * old_bytes_per_id,
        ),
        Row(
            what="stream into the Python client, step by step",
            size=f"{in_words(sizes.large)} sequences, steps of {STEP_BINS} bins",
            ours=str(steps_sample),
            target="≥ 12 M ids/s",
            reached=steps_sample.median >= 12,
        ),
    ]


def million_ids_per_second(read: Callable[[], int], num_ids: int) -> float:
    """Million ids a second, from the first block on until `num_ids` were read."""
    gc.collect()
    started = time.perf_counter()
    done = 0
    while done < num_ids:
        done += read()
    return done / (time.perf_counter() - started) / 1e6
