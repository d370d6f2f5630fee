"""A thousand streams of one server, in plain text and with TLS: first blocks, fairness, and memory; four thousand."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import bare_server
import grpc
import numpy as np
from bench_tls import papers
from harness import Row
from many_readers import Seen, Task, request
from workload import Workspace, in_words, serving, serving_recorded

from packhorse.v1 import packing_pb2_grpc

NOTE = (
    "many streams: `packhorse serve` and a process with all readers share the machine. Every reader has a connection "
    "of its own; once all are connected, all streams are opened at once. The first block is measured from the "
    "request, the rest while every stream is read as fast as it comes. Beside it, the same readers at a bare "
    "`grpc.aio` server in plain text, which answers every one of them with one header and one block that were made "
    "beforehand: what gRPC and the readers take. Processor time is that of either process until all have their first "
    "block. Memory is RssAnon of the server beyond what it takes without connections, over the streams: the highest "
    "while all read, and three seconds after all have stopped to read, with streams open. As many streams as a server "
    "takes by default are opened only: all of them get their first block. Run only when it is named."
)
_STREAMS, _QUICK_STREAMS = 1000, 200
_MOST_STREAMS, _QUICK_MOST_STREAMS = 4000, 1500
_READ_SECONDS, _QUICK_READ_SECONDS = 15.0, 4.0
_MOST_SECONDS, _MOST_KB = 3.0, 200


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    size = workspace.sizes.medium
    is_full = workspace.sizes.repeats > 3
    root, (flags, access) = workspace.root_of(size), papers(workspace.root)
    number = _STREAMS if is_full else _QUICK_STREAMS
    seconds = _READ_SECONDS if is_full else _QUICK_READ_SECONDS
    dataset = f"bench-{size}"
    rows, bare = [], None
    for how, of_server, of_readers in (
        ("plain text", [], {}),
        ("TLS", flags, {"ca": str(access["ca"]), "token": access["token_file"].read_text()}),
    ):
        with serving(root, *of_server) as (address, pid):
            task = Task(
                address=address, pid=pid, dataset=dataset, num_streams=number, read_seconds=seconds, **of_readers
            )
            if bare is None:
                bare = _read_bare(task, workspace.root / "first.messages")
            seen = _read(task)
        rows += _rows(seen, bare, how, in_words(size), seconds)
    most = _MOST_STREAMS if is_full else _QUICK_MOST_STREAMS
    with serving(root) as (address, pid):
        opened = _read(Task(address=address, pid=pid, dataset=dataset, num_streams=most, read_seconds=0.0))
    return [*rows, _row_of_most(opened, in_words(size))]


def _read_bare(task: Task, recording: Path) -> Seen:
    """Opens as many streams at a server that has the first messages of one ready-made."""
    with grpc.insecure_channel(task.address) as channel:
        call = packing_pb2_grpc.PackingServiceStub(channel).StreamBins(request(task.dataset, 0))
        bare_server.save(list(islice(call, 2)), recording)
        call.cancel()
    with serving_recorded(recording, "once") as (address, pid):
        return _read(replace(task, address=address, pid=pid, read_seconds=0.0))


def _read(task: Task) -> Seen:
    command = [sys.executable, str(Path(__file__).with_name("many_readers.py"))]
    done = subprocess.run(command, input=json.dumps(asdict(task)), capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"the readers failed: {done.stderr[-2000:]}")
    return Seen(**json.loads(done.stdout))


def _rows(seen: Seen, bare: Seen, how: str, sequences: str, seconds: float) -> list[Row]:
    number = len(seen.num_ids)
    size = f"{number:,} streams, {how}, {sequences} sequences"
    (half, most), (bare_half, bare_most) = (np.percentile(each.first_block_seconds, [50, 99]) for each in (seen, bare))
    ids = np.array(seen.num_ids)
    fairness = ids.min() / np.median(ids) if ids.any() else 0.0
    return [
        Row(
            what="connections that came about",
            size=size,
            ours=f"{seen.num_connected:,} within {seen.connect_seconds:.2f} s",
            target="all of them",
            reached=seen.num_connected == number,
        ),
        Row(
            what="first block, all streams opened at once",
            size=size,
            ours=f"{half:.2f} s (p99 {most:.2f} s){_failures(seen)}",
            peer=f"{bare_half:.2f} s (p99 {bare_most:.2f} s), bare gRPC in plain text",
            ratio=bare_most / most,
            target=f"p99 < {_MOST_SECONDS:g} s",
            reached=bool(most < _MOST_SECONDS and not seen.failures),
        ),
        Row(
            what="processor time of an opening",
            size=size,
            ours=_processor_time(seen),
            peer=f"{_processor_time(bare)}, bare gRPC in plain text",
            ratio=bare.server_seconds / seen.server_seconds,
        ),
        Row(
            what="the slowest stream's rate over the median's",
            size=size,
            ours=f"{fairness:.2f}; {ids.sum() / seconds / 1e6:.3g} M ids/s in all",
        ),
        *(
            Row(
                what=f"server memory for each stream, {what}",
                size=size,
                ours=f"{(kb - seen.idle_kb) / number:.0f} kB",
                target=f"< {_MOST_KB} kB",
                reached=(kb - seen.idle_kb) / number < _MOST_KB,
            )
            for what, kb in (("while all read", seen.reading_kb), ("while all pause", seen.paused_kb))
        ),
    ]


def _row_of_most(seen: Seen, sequences: str) -> Row:
    number = len(seen.num_ids)
    half, most = np.percentile(seen.first_block_seconds, [50, 99])
    return Row(
        what="first blocks of as many streams as a server takes, opened at once",
        size=f"{number:,} streams, plain text, {sequences} sequences",
        ours=f"{len(seen.first_block_seconds):,} of {number:,}, {half:.2f} s (p99 {most:.2f} s){_failures(seen)}",
        target="all of them",
        reached=len(seen.first_block_seconds) == number,
    )


def _failures(seen: Seen) -> str:
    return f"; {len(seen.failures)} failed: {', '.join(sorted(set(seen.failures)))}" if seen.failures else ""


def _processor_time(seen: Seen) -> str:
    number = len(seen.first_block_seconds)
    return f"{seen.server_seconds / number * 1e3:.2f} ms, and {seen.reader_seconds / number * 1e3:.2f} ms of its reader"
