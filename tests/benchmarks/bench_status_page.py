"""What the status page takes of the server: an answer with a thousand streams open, and a page that nobody opens."""

import json
import time
import urllib.request
from contextlib import ExitStack
from functools import partial
from itertools import count

from harness import Row, Sample, interleaved
from many_readers import processor_seconds
from tests.servers import free_port
from workload import Workspace, in_words, serving

from packhorse.client import Access, connect
from packhorse.proof.load import Load, run_load
from packhorse.topology import Topology

NOTE = (
    "status page: `packhorse serve` with 1,000 streams open, opened by 20 clients and paused after their first block. "
    "Every rank goes through the whole epoch (mode `independent`), so that no stream fits into its buffers and ends. "
    "An answer: the server's processor time for each GET of /status.json, a second apart, beyond what it takes in as "
    "long a time without; what is computed once has been computed, and `longest` is the wall time of one. "
    "Nobody looks: the processor time of a new server while `packhorse bench` reads 32 streams of 2,000 steps a "
    "second, with the page and, in turn, with --no-status-page. Run only when it is named."
)
_STREAMS, _QUICK_STREAMS = 1000, 200
_CLIENTS = 20
_ANSWERS = 20
_SECONDS_BETWEEN = 1.05
"""Just longer than the page keeps a document."""
_MOST_MS = 50.0


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    size, is_full = workspace.sizes.medium, workspace.sizes.repeats > 3
    number = _STREAMS if is_full else _QUICK_STREAMS
    root, port = workspace.root_of(size), free_port()
    url = f"http://127.0.0.1:{port}/status.json"
    with serving(root, "--metrics-listen", f"127.0.0.1:{port}", "--max-streams", str(number)) as (address, pid):
        rows = [_row_of_answers(address, pid, url, size, number, num_runs) for num_runs in (number // 50, number, 1)]
    return [*rows, _row_of_nobody(workspace)]


def _row_of_answers(address: str, pid: int, url: str, size: int, number: int, num_runs: int) -> Row:
    world_size = number // num_runs
    with ExitStack() as opened:
        clients = [opened.enter_context(connect(address)) for _ in range(_CLIENTS)]
        for index in range(number):
            run, rank = divmod(index, world_size)
            stream = clients[index % _CLIENTS].stream_bins(
                f"bench-{size}", seed=run, rank=rank, topology=Topology(world_size=world_size, mode="independent")
            )
            next(opened.enter_context(stream))
        facts = _get(url)[0]
        while any(dataset["costly"] == "computing" for dataset in facts["datasets"]):
            time.sleep(_SECONDS_BETWEEN)
            facts = _get(url)[0]
        time.sleep(5)  # until the streams' next blocks are made
        idle = [_spent(pid, lambda: None) for _ in range(_ANSWERS // 2)]
        walls: list[float] = []
        busy = [_spent(pid, lambda: walls.append(_get(url)[1])) for _ in range(_ANSWERS)]
        idle += [_spent(pid, lambda: None) for _ in range(_ANSWERS // 2)]
        facts = _get(url)[0]
    assert len(facts["activity"]["streams"]) == number
    milliseconds = (sum(busy) - sum(idle)) / _ANSWERS * 1e3
    return Row(
        what="an answer of the status page, the server's processor time",
        size=f"{num_runs:,} run{'s' * (num_runs > 1)} of {world_size:,} rank{'s' * (world_size > 1)}",
        ours=f"{milliseconds:.1f} ms, longest {max(walls) * 1e3:.0f} ms, {len(json.dumps(facts)) / 1e3:.0f} kB",
        target=f"< {_MOST_MS:g} ms",
        reached=milliseconds < _MOST_MS,
    )


def _get(url: str) -> tuple[dict, float]:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        content = answer.read()
    return json.loads(content), time.perf_counter() - began


def _spent(pid: int, work) -> float:
    """The server's processor seconds while `work` is done and until the next one may be."""
    before = processor_seconds(pid)
    work()
    time.sleep(_SECONDS_BETWEEN)
    return processor_seconds(pid) - before


def _row_of_nobody(workspace: Workspace) -> Row:
    size, repeats = workspace.sizes.medium, workspace.sizes.repeats
    seconds, seeds = (10.0 if repeats > 3 else 3.0), count()
    root = workspace.root_of(size)

    def share(*flags: str) -> float:
        with serving(root, "--metrics-listen", "127.0.0.1:0", *flags) as (address, pid):
            load = Load(
                target=address,
                access=Access(),
                dataset=f"bench-{size}",
                seed=next(seeds),
                topology=Topology(world_size=32, batch_size=8),
                seconds=seconds,
                steps_per_second=2000.0,
            )
            time.sleep(3)  # until rarely used kernels are loaded
            before = processor_seconds(pid)
            run_load(load, 1)
            return (processor_seconds(pid) - before) / seconds * 1e3

    measured = interleaved(repeats, share, partial(share, "--no-status-page"))
    ours, peer = (Sample(values, "ms a second") for values in measured)
    return Row(
        what="the server's processor time while nobody looks at the page",
        size=f"32 streams, {in_words(size)} sequences",
        ours=str(ours),
        peer=f"{peer}, --no-status-page",
        ratio=peer.median / ours.median,
        target="≥ 0.95×",
        reached=peer.median / ours.median >= 0.95,
    )
