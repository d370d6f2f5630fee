"""A thousand streams of one server, in plain text and with TLS: first blocks, fairness, and memory for each."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from bench_tls import papers
from harness import Row
from many_readers import Seen, Task
from workload import Workspace, in_words, serving

NOTE = (
    "many streams: `packhorse serve` and a process with all readers share the machine. Every reader has a connection "
    "of its own; once all are connected, all streams are opened at once. The first block is measured from the request, "
    "the rest while every stream is read as fast as it comes. Memory is RssAnon of the server beyond what it takes "
    "without connections, over the streams: the highest while all read, and three seconds after all have stopped to "
    "read, with streams open. Run only when it is named."
)
_STREAMS, _QUICK_STREAMS = 1000, 200
_READ_SECONDS, _QUICK_READ_SECONDS = 15.0, 4.0
_MOST_SECONDS, _MOST_KB = 1.0, 200


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    size = workspace.sizes.medium
    is_full = workspace.sizes.repeats > 3
    root, (flags, access) = workspace.root_of(size), papers(workspace.root)
    rows = []
    for how, of_server, of_readers in (
        ("plain text", [], {}),
        ("TLS", flags, {"ca": str(access["ca"]), "token": access["token_file"].read_text()}),
    ):
        with serving(root, *of_server) as (address, pid):
            seen = _read(
                Task(
                    address=address,
                    pid=pid,
                    dataset=f"bench-{size}",
                    num_streams=_STREAMS if is_full else _QUICK_STREAMS,
                    read_seconds=_READ_SECONDS if is_full else _QUICK_READ_SECONDS,
                    **of_readers,
                )
            )
        rows += _rows(seen, how, in_words(size), _READ_SECONDS if is_full else _QUICK_READ_SECONDS)
    return rows


def _read(task: Task) -> Seen:
    command = [sys.executable, str(Path(__file__).with_name("many_readers.py"))]
    done = subprocess.run(command, input=json.dumps(asdict(task)), capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"the readers failed: {done.stderr[-2000:]}")
    return Seen(**json.loads(done.stdout))


def _rows(seen: Seen, how: str, sequences: str, seconds: float) -> list[Row]:
    number = len(seen.num_ids)
    size = f"{number:,} streams, {how}, {sequences} sequences"
    half, most = np.percentile(seen.first_block_seconds, [50, 99])
    ids = np.array(seen.num_ids)
    failures = f"; {len(seen.failures)} failed: {', '.join(sorted(set(seen.failures)))}" if seen.failures else ""
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
            ours=f"{half:.2f} s (p99 {most:.2f} s){failures}",
            target=f"p99 < {_MOST_SECONDS:g} s",
            reached=bool(most < _MOST_SECONDS and not seen.failures),
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
