"""What servers did between two looks at them: rates of processes, datasets, runs and streams.

A look is a list of answers, one for each server process. Owns the arithmetic on two looks. Leaves facts of a dataset to
`facts`, and asking servers to `packhorse.proof`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import EpochKey, steps_of_ranks

_Server = Any
"""A process's answer: a `packhorse.proof.ServerActivity`, or what the status page makes with the same fields."""
_Stream = pb.StreamActivity
"""An open stream: this message, or a `packhorse.proof.StreamActivity`, which has the same fields."""

_STREAM_FIELDS = tuple(pb.StreamActivity.DESCRIPTOR.fields_by_name)


def activity_between(before: Sequence[_Server], after: Sequence[_Server], seconds: float) -> dict[str, Any]:
    """Returns what servers do now, with rates since an earlier look.

    The rate of a process or stream that was not in the earlier look is its mean since it began.

    Example:
        >>> activity_between([], [], 2.0)["runs"]
        []

    Args:
        before: the earlier answer of each process; may be empty.
        after: the present answer of each process.
        seconds: the time between the two looks.

    Returns:
        The seconds, and lists of dicts of JSON values: "servers" (one for each process), "datasets", "digests", "runs"
        and "streams", in which the streams furthest behind come first.
    """
    servers_before = {server.process: server for server in before}
    streams_before = {(server.process, stream.id): stream for server in before for stream in server.streams}
    next_steps = steps_of_ranks(stream for server in after for stream in server.streams)
    furthest_steps = {run: max(ranks.values()) for run, ranks in next_steps.items()}
    streams: list[dict[str, Any]] = []
    streams_of_runs: dict[EpochKey, list[dict[str, Any]]] = defaultdict(list)
    for server in after:
        for stream in server.streams:
            run = EpochKey(stream.dataset, stream.epoch, stream.seed, stream.world_size)
            stream_before = streams_before.get((server.process, stream.id))
            furthest_step = furthest_steps.get(run, stream.next_step)  # a stream without a dataset yet is of no run
            facts = _stream_facts(stream, server.address, stream_before, seconds, furthest_step)
            streams.append(facts)
            streams_of_runs[run].append(facts)
    streams.sort(key=lambda facts: (-facts["behind_steps"], -facts["waiting_seconds"]))
    return {
        "seconds": seconds,
        "servers": [_server_facts(server, servers_before.get(server.process), seconds) for server in after],
        "datasets": _dataset_facts(servers_before, after, seconds),
        "digests": _digest_facts(after),
        "runs": [_run_facts(run, ranks, streams_of_runs[run]) for run, ranks in next_steps.items()],
        "streams": streams,
    }


def _server_facts(server: _Server, before: _Server | None, seconds: float) -> dict[str, Any]:
    """Returns the facts of a process; `before` is its earlier answer, None if it is new."""
    period = seconds if before else server.uptime_seconds
    processor_seconds = server.processor_seconds - (before.processor_seconds if before else 0.0)
    bytes_without_request = server.bytes_without_request - (before.bytes_without_request if before else 0)
    return {
        "address": server.address,
        "process": f"{server.process:016x}",
        "version": server.server_version,
        "uptime_seconds": server.uptime_seconds,
        "streams": len(server.streams),
        "max_streams": server.max_streams,
        "waiting_in_lanes": server.waiting_in_lanes,
        "processors": _rate(processor_seconds, period),
        "processor_seconds": server.processor_seconds,
        "memory_bytes": server.memory_bytes,
        "memory_limit_bytes": server.memory_limit_bytes,
        "open_files": server.open_files,
        "most_open_files": server.most_open_files,
        "connections": server.num_connections,
        "connections_without_request": server.num_connections_without_request,
        "bytes_without_request_per_second": _rate(bytes_without_request, period),
    }


def _dataset_facts(
    servers_before: Mapping[int, _Server], after: Sequence[_Server], seconds: float
) -> list[dict[str, Any]]:
    """Returns each dataset's rates of bins, sequences and tokens, summed over the processes that sent them."""
    rates: dict[str, list[float]] = {}  # dataset → bins, sequences and tokens in a second
    for server in after:
        before = servers_before.get(server.process)
        period = seconds if before else server.uptime_seconds
        for name, sent in server.sent.items():
            sent_before = before.sent.get(name, (0, 0, 0)) if before else (0, 0, 0)
            new = [_rate(count - old, period) for count, old in zip(sent, sent_before, strict=True)]
            rates[name] = [sum(pair) for pair in zip(rates.get(name, [0.0] * 3), new, strict=True)]
    return [
        {"dataset": name, "bins_per_second": bins, "sequences_per_second": sequences, "tokens_per_second": tokens}
        for name, (bins, sequences, tokens) in sorted(rates.items())
    ]


def _digest_facts(after: Sequence[_Server]) -> list[dict[str, Any]]:
    """Returns how many streams and runs use each digest. The folder of a digest in use must stay on disk."""
    streams_of_digests: dict[tuple[str, str], list[_Stream]] = defaultdict(list)
    for stream in (stream for server in after for stream in server.streams if stream.digest):
        streams_of_digests[stream.dataset, stream.digest].append(stream)
    return [
        {
            "dataset": dataset,
            "digest": digest,
            "streams": len(streams),
            "runs": len({(stream.epoch, stream.seed) for stream in streams}),
        }
        for (dataset, digest), streams in sorted(streams_of_digests.items())
    ]


def _run_facts(run: EpochKey, ranks: dict[int, int], streams: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the facts of a run, from the next step of each open rank and the facts of its streams."""
    slowest = min(ranks, key=lambda rank: ranks[rank])
    furthest_step = max(ranks.values())
    return {
        **run._asdict(),
        "open_ranks": len(ranks),
        "open_streams": len(streams),
        "num_steps": max(stream["num_steps"] for stream in streams),
        "furthest_step": furthest_step,
        "slowest_step": ranks[slowest],
        "slowest_rank": slowest,
        "lag_steps": furthest_step - ranks[slowest],
        "bytes_per_second": sum(stream["bytes_per_second"] for stream in streams),
        "blocked_share": sum(stream["blocked_share"] for stream in streams) / len(streams),
    }


def _stream_facts(
    stream: _Stream, address: str, before: _Stream | None, seconds: float, furthest_step: int
) -> dict[str, Any]:
    """Returns the facts of a stream.

    `before` is the stream at the earlier look; None if it was not open. `furthest_step` is the next step of the rank of
    its run that is furthest.
    """
    period = seconds if before else stream.open_seconds
    blocked_seconds = stream.blocked_seconds + stream.waiting_seconds
    if before:
        blocked_seconds -= before.blocked_seconds + before.waiting_seconds
    return {name: getattr(stream, name) for name in _STREAM_FIELDS} | {
        "server": address,
        "behind_steps": furthest_step - stream.next_step,
        "steps_per_second": _rate(stream.next_step - (before.next_step if before else stream.first_step), period),
        "bytes_per_second": _rate(stream.sent_bytes - (before.sent_bytes if before else 0), period),
        "blocked_share": min(1.0, max(0.0, _rate(blocked_seconds, period))),
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
