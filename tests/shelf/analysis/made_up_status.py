"""Status documents that are made up, and the page shown with them: states that a test's server is seldom in."""

import json
import threading
from contextlib import contextmanager
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

from packhorse.analysis.status_page import StatusPage

_LANES = ("streams", "small-blocks", "tokens", "arranging", "answers", "packing", "searching")


def process(number=0, **other):
    facts = {
        "address": "",
        "process": f"{number:016x}",
        "version": "0.1.0",
        "uptime_seconds": 93_784.2,
        "streams": 8,
        "max_streams": 4096,
        "waiting_in_lanes": dict.fromkeys(_LANES, 0),
        "processors": 0.42,
        "processor_seconds": 5000.0,
        "memory_bytes": 412_000_000,
        "memory_limit_bytes": 16_000_000_000,
        "open_files": 61,
        "most_open_files": 20_000,
        "connections": 8,
        "connections_without_request": 0,
        "bytes_without_request_per_second": 0.0,
    }
    return facts | other


def stream(rank, *, dataset="chats", behind=0, seed=0, world_size=8, furthest=61_200, **other):
    facts = {
        "id": f"{seed:04x}{rank:04x}",
        "method": "StreamBins",
        "dataset": dataset,
        "epoch": 0,
        "seed": seed,
        "rank": rank,
        "worker": 0,
        "world_size": world_size,
        "first_step": 0,
        "next_step": furthest - behind,
        "num_steps": 90_000,
        "open_seconds": 7200.0,
        "behind_steps": behind,
        "steps_per_second": 8.5,
        "bytes_per_second": 23_700.0,
        "blocked_share": 0.97,
    }
    return facts | other


def run_of(streams):
    """The run that streams of all ranks make."""
    last = max(streams, key=lambda each: each["behind_steps"])
    names = ("dataset", "epoch", "seed", "world_size", "num_steps")
    return {name: last[name] for name in names} | {
        "open_ranks": len(streams),
        "open_streams": len(streams),
        "furthest_step": last["next_step"] + last["behind_steps"],
        "slowest_step": last["next_step"],
        "slowest_rank": last["rank"],
        "lag_steps": last["behind_steps"],
        "bytes_per_second": sum(each["bytes_per_second"] for each in streams),
        "blocked_share": 0.97,
    }


def waiting_of(dataset, idle_share):
    names = {"world_size": "8", "batch_size": "2", "accumulation": "1", "balance": "sorted", "wait": "step"}
    return {"dataset": dataset, **names, "idle_share": idle_share}


def status(datasets, runs=(), *, processes=1, **server):
    """A document.

    Args:
        datasets: facts of each.
        runs: the streams of each.
        processes: how many serve.
        server: what else the server says.
    """
    streams = [stream for streams in runs for stream in streams]
    facts = {
        "host": "gpu-login-1",
        "version": "0.1.0",
        "wire_version": 3,
        "num_processes": processes,
        "is_serving": True,
        "lanes": dict.fromkeys(_LANES, 0),
        "refused_calls": {},
        "certificate_days": {"server.crt": 61.4},
        "unusable_files": [],
        "waiting": [],
    }
    sent = {"bins_per_second": 900.0, "sequences_per_second": 4000.0, "tokens_per_second": 1.8e6}
    return {
        "server": facts | server,
        "activity": {
            "seconds": 3.0,
            "servers": [process(number, streams=len(streams) // processes) for number in range(processes)],
            "datasets": [{"dataset": name, **sent} for name in sorted({each["dataset"] for each in streams})],
            "digests": [],
            "runs": [run_of(streams) for streams in runs],
            "streams": sorted(streams, key=lambda each: -each["behind_steps"]),
        },
        "datasets": list(datasets),
    }


def named(facts, name, **other):
    """A dataset's facts under another name."""
    return facts | {"name": name, "costly": None} | other


def healthy(facts):
    """Three datasets and two runs, of which one has a rank that is a little behind."""
    datasets = [named(facts, "books"), named(facts, "chats", efficiency=0.981), named(facts, "web", efficiency=0.93)]
    runs = [
        [stream(rank, behind=4 if rank == 5 else 0) for rank in range(8)],
        [stream(rank, dataset="web", seed=7, world_size=4, furthest=12_000) for rank in range(4)],
    ]
    return status(datasets, runs, waiting=[waiting_of("chats", 0.032)], refused_calls={"DATASET_NOT_FOUND": 2})


def straggling(facts):
    """One rank of a run is far behind."""
    datasets = [named(facts, "chats", efficiency=0.981)]
    runs = [[stream(rank, behind=4210 if rank == 5 else rank) for rank in range(8)]]
    return status(datasets, runs, waiting=[waiting_of("chats", 0.21)])


def worrying(facts):
    """It serves; a dataset is withdrawn, tokens of another too, a process is silent, a certificate ends soon."""
    unusable = [{"kind": "corpus", "name": "chats"}, {"kind": "dataset", "name": "books"}]
    document = straggling(facts)
    document["server"] |= {"unusable_files": unusable, "certificate_days": {"server.crt": 2.6}, "num_processes": 2}
    return document


def dying(facts):
    """It does not serve, its certificate has expired, calls are refused and work piles up."""
    document = worrying(facts)
    document["server"] |= {
        "is_serving": False,
        "certificate_days": {"server.crt": -1.5, "clients-of-the-training-cluster.crt": 200.0},
        "refused_calls": {"UNAUTHENTICATED": 48_211, "TOO_MANY_REQUESTS": 907, "DATASET_NOT_FOUND": 2},
        "lanes": dict.fromkeys(_LANES, 0) | {"streams": 311, "tokens": 80},
        "num_processes": 1,
    }
    document["activity"]["servers"] = [process(memory_bytes=15_800_000_000, streams=8)]
    return document


def idle(facts):
    """Nobody streams, and the server speaks plain text."""
    return status([named(facts, "chats")], certificate_days={})


def crowded(facts, *, datasets=200, runs=20, ranks=50):
    """Many datasets with long names, and a thousand streams over twenty runs."""
    kinds = ("chats", "web-crawl-2026-filtered-deduplicated", "code/python", "books ü", "math")
    names = [f"{kinds[number % 5]}-{number:03}" for number in range(datasets)]
    made = [named(facts, name, efficiency=0.8 + number / 1000) for number, name in enumerate(names)]
    opened = [
        [
            stream(rank, dataset=names[number], seed=number, world_size=ranks, behind=(rank * number) % 37)
            for rank in range(ranks)
        ]
        for number in range(runs)
    ]
    refused = {f"REASON_{number}": number for number in range(1, 15)}
    waiting = [waiting_of(name, 0.04) for name in names[:runs]]
    return status(made, opened, processes=16, refused_calls=refused, waiting=waiting)


STATES = (healthy, straggling, worrying, dying, idle, crowded)


class _Page(StatusPage):
    def __init__(self, answer):
        super().__init__(list, Path())
        self.answer = answer

    def document(self, looked_at=()):
        return json.dumps(self.answer(looked_at)).encode()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def shown(answer):
    """The page with what `answer` returns for the names of datasets that are looked at; yields its origin."""
    with make_server("127.0.0.1", 0, _Page(answer), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
