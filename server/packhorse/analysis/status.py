"""What the status page and `packhorse top` show: facts of a dataset, and rates between two looks at servers.

Owns what is chosen for people, the page's files, from a server or as one file, and the arithmetic of rates, on the
client's `ServerActivity` objects or on others with the same fields. Leaves the other figures to `report` and `packers`,
and asking servers to `packhorse.proof`.
"""

import base64
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.analysis.counts import HistogramInput, lengths_before, options_of
from packhorse.analysis.packers import compare_packers
from packhorse.analysis.report import dataset_report
from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import EpochKey, steps_of_ranks

_FOLDER = Path(__file__).parent / "page"

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".json": "application/json"}

_LENGTH_BINS, _FULLNESS_BINS = 60, 40

_WORLD_SIZE = 8
"""Ranks of the run whose waiting is shown, beside a quarter and four times as many."""

_ACCUMULATION = 8
"""Its steps in an optimizer step: with one, no balance could change anything."""

_TIME_LIMIT_SECONDS = 2.0
"""For each packer that improves its plan step by step."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """Returns the page's files by name: content type and content.

    Example:
        >>> page_files()["page.js"][0]
        'text/javascript'
    """
    return _page_files()


@cache
def _page_files() -> dict[str, tuple[str, bytes]]:
    paths = (path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES)
    return {path.name: (_TYPES[path.suffix], path.read_bytes()) for path in paths}


def dataset_facts(dataset: PreparedDataset | MixtureDataset) -> dict[str, Any]:
    """Returns what is known of a dataset or mixture at once.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> facts = dataset_facts(open_prepared("datasets/corpus"))
        >>> facts["num_bins"], facts["efficiency"], facts["gap"]
        (2, 1.0, 0.0)
    """
    manifest = dataset.manifest
    prepared = dataset if isinstance(dataset, PreparedDataset) else None
    return {
        "name": dataset.name,
        "components": [each.name for each in dataset.datasets] if isinstance(dataset, MixtureDataset) else [],
        "digest": manifest.digest,
        "algorithm": manifest.algorithm,
        "max_seq_len": manifest.max_seq_len,
        "num_sequences": manifest.n_sequences,
        "num_bins": manifest.n_bins,
        "total_tokens": manifest.total_tokens,
        "efficiency": manifest.efficiency,
        "lower_bound": manifest.lower_bound,
        "gap": manifest.n_bins / manifest.lower_bound - 1 if manifest.lower_bound else None,
        "lengths": None if prepared is None else _lengths(prepared),
        "fullness": None if prepared is None else _fullness(prepared),
    }


def costly_facts(dataset: PreparedDataset) -> dict[str, Any]:
    """Returns what takes seconds: versions, other context lengths, packers, ways without packing, and waiting.

    Packers know tokens only, so a dataset whose resources have caps is not compared with any.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> costly_facts(open_prepared("datasets/corpus"))["padding_avoided_tokens"]
        16
    """
    rule = dataset.manifest.options.context
    ranks = _WORLD_SIZE * (1 if rule is None else rule.max_context_parallel)
    report = dataset_report(dataset, run=Topology(world_size=ranks, accumulation=_ACCUMULATION))
    packers: list[dict[str, Any]] = []
    if len(dataset.manifest.capacities) == 1:
        source = HistogramInput(name=dataset.name, counts=lengths_before(dataset), options=options_of(dataset))
        compared = compare_packers(source, options_of(dataset), time_limit_seconds=_TIME_LIMIT_SECONDS)
        packers = compared.facts()["packers"]
    facts = report.facts()
    padded = next(way for way in report.without_packing if way.way == "padded")
    own = dataset.manifest.max_seq_len
    return {
        "version": next((each["version"] for each in facts["versions"] if each["is_current"]), None),
        "padding_avoided_tokens": padded.computed_tokens - dataset.manifest.total_capacity,
        "context_lengths": facts["context_lengths"],
        "packers": packers,
        "without_packing": facts["without_packing"],
        "waiting": [row | {"accumulation": _ACCUMULATION} for row in facts["waiting"] if row["max_seq_len"] == own],
    }


def html_report(datasets: list[dict[str, Any]]) -> str:
    """Returns the page with its scripts and data in it: one file, which asks nobody for anything.

    Example:
        >>> html_report([]).startswith("<!doctype html>")
        True

    Args:
        datasets: from `dataset_facts`, each with `costly_facts` under "costly".
    """
    files = {name: content.decode() for name, (_, content) in page_files().items()}
    modules = {f"./{name}": _data_url(files[name]) for name in ("uplot.js", "preact.js")}
    document = json.dumps({"server": None, "activity": None, "datasets": datasets}).replace("<", "\\u003c")
    head = [
        *(f"<style>{files[name]}</style>" for name in ("uplot.css", "page.css")),
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>',
        f'<script type="application/json" id="document">{document}</script>',
        f'<script type="module">{files["page.js"]}</script>',
    ]
    title = html.escape(", ".join(each["name"] for each in datasets) or "Packhorse")
    begin, _, rest = files["page.html"].partition("<!-- head -->")
    _, _, end = rest.partition("<!-- end of head -->")
    return begin.replace("<title>Packhorse", f"<title>{title}, packed by Packhorse") + "\n".join(head) + end


def _data_url(script: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(script.encode()).decode()


def _lengths(dataset: PreparedDataset) -> dict[str, list[float]]:
    plan = dataset.plan
    counts, edges = np.histogram(plan.rooms, bins=_LENGTH_BINS, weights=plan.counts)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _fullness(dataset: PreparedDataset) -> dict[str, list[float]]:
    sums = np.array([sum(template) for template in dataset.templates])
    share = sums / dataset.manifest.max_seq_len
    counts, edges = np.histogram(share, _FULLNESS_BINS, (0.0, 1.0), weights=list(dataset.templates.values()))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


_STREAM_FIELDS = tuple(pb.StreamActivity.DESCRIPTOR.fields_by_name)


def activity_between(before: Sequence[Any], after: Sequence[Any], seconds: float) -> dict[str, Any]:
    """Returns what servers do now, with rates since an earlier look.

    A process or stream that is new since then has its rate since it began.

    Example:
        >>> activity_between([], [], 2.0)["runs"]
        []

    Args:
        before: the earlier answer of each process; may be empty.
        after: the present answer of each process.
        seconds: between the two.

    Returns:
        Lists of dicts, under servers, datasets, digests, runs and streams; the streams furthest behind come first.
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
    """Facts of a stream; `then` is the same stream at the earlier moment, None if it was not open."""
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
    """Returns what a process uses, with rates since the earlier look or since it began."""
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
    """Returns the number of streams and runs that use each digest, which must stay on disk as long as they do."""
    streams: dict[tuple[str, str], list[Any]] = {}
    for stream in (stream for server in after for stream in server.streams if stream.digest):
        streams.setdefault((stream.dataset, stream.digest), []).append(stream)
    return [
        {"dataset": dataset, "digest": digest, "streams": len(ours), "runs": len({(s.epoch, s.seed) for s in ours})}
        for (dataset, digest), ours in sorted(streams.items())
    ]


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
