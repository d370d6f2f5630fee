"""Tokens in the stream: their rate beside bare gRPC, what they cost streams of ids, and the first batch."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import bare_server
import grpc
import numpy as np
from harness import Row, Sample, interleaved
from workload import Workspace, serving, serving_recorded

from packhorse.client import Client, PackedDataset, connect
from packhorse.client.transport.requests import topology_message
from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

NOTE = (
    "served-tokens: `packhorse serve --tokens` in a process of its own, over a Megatron pair in the page cache, bins "
    "of 8,192 tokens, 8 a step. Beside it a bare `grpc.aio` server yields messages recorded from the same stream, and "
    "a bare stub reads them without looking inside. Ids beside tokens: one stream of ids, alone and while a process "
    "of its own reads eight streams of tokens, ten steps a second each: ten times a trainer's pace. First batch: of a "
    "new PackedDataset, beside the first block of ids; both connect anew. Batches: assembled from the stream and from "
    "the mapped file, without workers."
)
_NAME, _BINS = "tokens", 8
_READ_BYTES = 400 << 20
_RECORDED = 60
_STEPS_A_SECOND = 10


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    corpus, root = prepared(workspace)
    ids_name = f"bench-{workspace.sizes.medium}"
    topology, epochs, repeats = Topology(batch_size=_BINS), count(), workspace.sizes.repeats

    def request(*, with_tokens: bool) -> pb.StreamBinsRequest:
        return pb.StreamBinsRequest(
            dataset=_NAME,
            epoch=next(epochs),
            seed=1,
            topology=topology_message(topology),
            wire_version=WIRE_VERSION,
            with_tokens=with_tokens,
        )

    with ExitStack() as stack:
        address, _ = stack.enter_context(serving(root, "--tokens"))
        channel = stack.enter_context(grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]))
        call = packing_pb2_grpc.PackingServiceStub(channel).StreamBins(request(with_tokens=True))
        recording = workspace.root / "tokens.messages"
        bare_server.save(list(islice(call, _RECORDED)), recording)
        call.cancel()
        bare_address, _ = stack.enter_context(serving_recorded(recording))
        bare_channel = stack.enter_context(
            grpc.insecure_channel(bare_address, options=[("grpc.max_receive_message_length", -1)])
        )
        client = stack.enter_context(connect(address))

        def ours() -> float:
            def blocks() -> Iterator[int]:
                while True:
                    with client.stream_bins(
                        _NAME, epoch=next(epochs), seed=1, topology=topology, with_tokens=True
                    ) as stream:
                        for block in stream:
                            assert block.tokens is not None
                            yield 2 * int(block.tokens.sizes.sum())

            return _rate(blocks())

        def bare() -> float:
            responses = packing_pb2_grpc.PackingServiceStub(bare_channel).StreamBins(request(with_tokens=True))
            found = _rate(len(message.block.tokens.tokens) for message in responses)
            responses.cancel()
            return found

        interleaved(1, ours, bare)
        rates, bare_rates = interleaved(repeats, ours, bare)

        def ids() -> float:
            return _ids_per_second(client, ids_name, epochs)

        def ids_beside() -> float:
            with _reading(address, 8):
                return _ids_per_second(client, ids_name, epochs)

        interleaved(1, ids)
        beside, alone = interleaved(repeats, ids_beside, ids)

        def first_batch() -> float:
            def first() -> None:
                dataset = PackedDataset(address, _NAME, batch_size=_BINS, seed=1, rank=(0, 1))
                dataset.set_epoch(next(epochs))
                next(iter(dataset))

            return _milliseconds(first)

        def first_bin() -> float:
            def first() -> None:
                with connect(address) as own:
                    next(own.stream_bins(_NAME, epoch=next(epochs), seed=1, topology=topology))

            return _milliseconds(first)

        interleaved(3, first_batch, first_bin)
        batch_ms, bin_ms = interleaved(workspace.sizes.streams, first_batch, first_bin)

        def batches(tokens: str | None) -> float:
            dataset = PackedDataset(address, _NAME, tokens, batch_size=_BINS, seed=1, rank=(0, 1))
            dataset.set_epoch(next(epochs))
            return _rate(batch["input_ids"].numel() * 2 for batch in dataset) / 2

        interleaved(1, lambda: batches(None), lambda: batches(corpus))
        sent, read = interleaved(repeats, lambda: batches(None), lambda: batches(corpus))
    return [
        _faster("tokens into the client", rates, bare_rates, "MB/s", "bare gRPC", 0.5),
        _faster("ids beside eight streams of tokens", beside, alone, "M ids/s", "alone", 0.8),
        _sooner("first batch with tokens", batch_ms, bin_ms, 1.5),
        _faster("batches without workers", sent, read, "M tokens/s", "from the file", None),
    ]


def prepared(workspace: Workspace) -> tuple[str, Path]:
    """Writes 150 million tokens (a tenth with --quick), and a dataset of them beside another of many ids."""
    rng, prefix = np.random.default_rng(1), workspace.root / "served" / "corpus"
    root = workspace.root_of(workspace.sizes.medium)
    if prefix.parent.exists():  # another benchmark of this run was here
        return f"{prefix}.idx", root
    prefix.parent.mkdir()
    lengths = np.minimum(rng.lognormal(6, 1, workspace.sizes.small // 4).astype(np.int64) + 1, 8192)
    with MegatronWriter(prefix, vocab_size=50_000) as writer:
        for some in np.array_split(lengths, 40):
            writer.append_many(rng.integers(0, 50_000, int(some.sum())), some)
    prepare(f"{prefix}.idx", output=root / _NAME, max_seq_len=8192)
    return f"{prefix}.idx", root


def _rate(sizes: Iterator[int]) -> float:
    """Returns million bytes a second until _READ_BYTES were read, or the end."""
    started, done = time.perf_counter(), 0
    for size in sizes:
        done += size
        if done >= _READ_BYTES:
            break
    return done / (time.perf_counter() - started) / 1e6


def _ids_per_second(client: Client, name: str, epochs: "count[int]", num_ids: int = 8_000_000) -> float:
    started, done = time.perf_counter(), 0
    while done < num_ids:
        with client.stream_bins(name, epoch=next(epochs), seed=1, topology=Topology(batch_size=32)) as stream:
            for block in stream:
                done += len(block.ids)
    return done / (time.perf_counter() - started) / 1e6


@contextmanager
def _reading(address: str, num_streams: int) -> Iterator[None]:
    """Reads streams of tokens meanwhile, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    begun, stopping = context.Barrier(2), context.Event()
    process = context.Process(target=_read_tokens, args=(address, num_streams, begun, stopping))
    process.start()
    begun.wait()
    try:
        yield
    finally:
        stopping.set()
        process.join()


def _read_tokens(address: str, num_streams: int, begun: Any, stopping: Any) -> None:
    topology = Topology(batch_size=_BINS)
    with connect(address) as client:

        def read(number: int) -> None:
            while not stopping.is_set():
                with client.stream_bins(_NAME, epoch=number, topology=topology, with_tokens=True) as stream:
                    for block in stream:
                        if stopping.wait(len(block.steps) / _STEPS_A_SECOND):
                            return

        threads = [threading.Thread(target=read, args=(number,)) for number in range(num_streams)]
        for thread in threads:
            thread.start()
        begun.wait()
        for thread in threads:
            thread.join()


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def _faster(
    what: str, ours: tuple[float, ...], peers: tuple[float, ...], unit: str, peer: str, target: float | None
) -> Row:
    mine, theirs = Sample(ours, unit), Sample(peers, unit)
    ratio = mine.median / theirs.median
    return Row(
        what=what,
        size="bins of 8,192, 8 a step",
        ours=str(mine),
        peer=f"{theirs}, {peer}",
        ratio=ratio,
        target="" if target is None else f"≥ {target}×",
        reached=None if target is None else ratio >= target,
    )


def _sooner(what: str, ours: tuple[float, ...], peers: tuple[float, ...], target: float) -> Row:
    mine, theirs = Sample(ours, "ms"), Sample(peers, "ms")
    ratio = mine.median / theirs.median
    return Row(
        what=what,
        size="bins of 8,192, 8 a step",
        ours=str(mine),
        peer=f"{theirs}, first block of ids",
        ratio=ratio,
        target=f"≤ {target}×",
        reached=ratio <= target,
    )
