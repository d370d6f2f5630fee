"""What servers did between two looks at them: rates of processes, datasets, runs and streams.

A look is a list of answers, one for each server process: the client's `ServerActivity` objects, or others with the same
fields. Owns the arithmetic on two looks. Leaves facts of a dataset to `facts`, and asking servers to `packhorse.proof`.
"""

from collections.abc import Sequence
from typing import Any

from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import EpochKey, steps_of_ranks

_STREAM_FIELDS = tuple(pb.StreamActivity.DESCRIPTOR.fields_by_name)


def activity_between(before: Sequence[Any], after: Sequence[Any], seconds: float) -> dict[str, Any]:
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
    earlier = {server.process: server for server in before}
    steps = steps_of_ranks(stream for server in after for stream in server.streams)
    furthest = {run: max(ranks.values()) for run, ranks in steps.items()}
    then = {(server.process, stream.id): stream for server in before for stream in server.streams}
    streams = [
        _stream_facts(stream, server.address, then.get((server.process, stream.id)), seconds, furthest)
        for server in after
        for stream in server.streams
    ]
    of_runs: dict[EpochKey, list[dict[str, Any]]] = {}
    for facts in streams:
        of_runs.setdefault(EpochKey(*(facts[name] for name in EpochKey._fields)), []).append(facts)
    streams.sort(key=lambda facts: (-facts["behind_steps"], -facts["waiting_seconds"]))
    return {
        "seconds": seconds,
        "servers": [
            {
                "address": server.address,
                "process": f"{server.process:016x}",
                "version": server.server_version,
                "uptime_seconds": server.uptime_seconds,
                "streams": len(server.streams),
                "max_streams": server.max_streams,
                "waiting_in_lanes": server.waiting_in_lanes,
                **_process_facts(server, earlier.get(server.process), seconds),
            }
            for server in after
        ],
        "datasets": _dataset_facts(earlier, after, seconds),
        "digests": _digest_facts(after),
        "runs": [_run_facts(run, ranks, of_runs[run]) for run, ranks in steps.items()],
        "streams": streams,
    }


def _stream_facts(
    stream: Any, address: str, then: Any, seconds: float, furthest: dict[EpochKey, int]
) -> dict[str, Any]:
    """Returns the facts of a stream.

    `then` is the same stream at the earlier look; None if it was not open. `furthest` has the step that the furthest
    rank of each run has reached.
    """
    period = seconds if then else stream.open_seconds
    run = EpochKey(stream.dataset, stream.epoch, stream.seed, stream.world_size)
    blocked = (
        stream.blocked_seconds + stream.waiting_seconds - (then.blocked_seconds + then.waiting_seconds if then else 0)
    )
    facts = {name: getattr(stream, name) for name in _STREAM_FIELDS}
    facts |= {
        "server": address,
        "behind_steps": furthest.get(run, stream.next_step) - stream.next_step,
        "steps_per_second": _rate(stream.next_step - (then.next_step if then else stream.first_step), period),
        "bytes_per_second": _rate(stream.sent_bytes - (then.sent_bytes if then else 0), period),
        "blocked_share": min(1.0, max(0.0, _rate(blocked, period))),
    }
    return facts


def _run_facts(run: EpochKey, ranks: dict[int, int], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the facts of a run, from the next step of each open rank and the facts of its streams."""
    slowest = min(ranks, key=lambda rank: ranks[rank])
    return {
        **run._asdict(),
        "open_ranks": len(ranks),
        "open_streams": len(ours),
        "num_steps": max(stream["num_steps"] for stream in ours),
        "furthest_step": max(ranks.values()),
        "slowest_step": ranks[slowest],
        "slowest_rank": slowest,
        "lag_steps": max(ranks.values()) - ranks[slowest],
        "bytes_per_second": sum(stream["bytes_per_second"] for stream in ours),
        "blocked_share": sum(stream["blocked_share"] for stream in ours) / len(ours),
    }


def _dataset_facts(earlier: dict[int, Any], after: Sequence[Any], seconds: float) -> list[dict[str, Any]]:
    """Returns each dataset's rates of bins, sequences and tokens, summed over the processes that sent them."""
    rates: dict[str, list[float]] = {}
    for server in after:
        then = earlier.get(server.process)
        for name, counts in server.sent.items():
            past = then.sent.get(name, (0, 0, 0)) if then else (0, 0, 0)
            period = seconds if then else server.uptime_seconds
            new = [_rate(count - old, period) for count, old in zip(counts, past, strict=True)]
            rates[name] = [sum(pair) for pair in zip(rates.get(name, [0.0] * 3), new, strict=True)]
    return [
        {"dataset": name, "bins_per_second": bins, "sequences_per_second": sequences, "tokens_per_second": tokens}
        for name, (bins, sequences, tokens) in sorted(rates.items())
    ]


def _process_facts(server: Any, earlier: Any, seconds: float) -> dict[str, Any]:
    """Returns what a process uses, with rates since the earlier look, or since the process began if it is new."""
    period = seconds if earlier else server.uptime_seconds
    processor = server.processor_seconds - (earlier.processor_seconds if earlier else 0.0)
    beside = server.bytes_without_request - (earlier.bytes_without_request if earlier else 0)
    return {
        "processors": _rate(processor, period),
        "processor_seconds": server.processor_seconds,
        "memory_bytes": server.memory_bytes,
        "memory_limit_bytes": server.memory_limit_bytes,
        "open_files": server.open_files,
        "most_open_files": server.most_open_files,
        "connections": server.num_connections,
        "connections_without_request": server.num_connections_without_request,
        "bytes_without_request_per_second": _rate(beside, period),
    }


def _digest_facts(after: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns how many streams and runs use each digest. The folder of a digest in use must stay on disk."""
    streams: dict[tuple[str, str], list[Any]] = {}
    for stream in (stream for server in after for stream in server.streams if stream.digest):
        streams.setdefault((stream.dataset, stream.digest), []).append(stream)
    return [
        {"dataset": dataset, "digest": digest, "streams": len(ours), "runs": len({(s.epoch, s.seed) for s in ours})}
        for (dataset, digest), ours in sorted(streams.items())
    ]


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
