"""What this process does now: its streams, the work that waits, and the status page for people with its JSON document.

Owns GetActivity's answer, the metric of ranks that lag, the page's paths, what each process says of itself, and the
document made of that. Leaves the calls themselves to `calls`, figures that take seconds to `figures`, the others and
the page to `packhorse.analysis`, and who may read them to `metrics_port`.
"""

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

from packhorse.analysis import activity_between, dataset_facts, page_files
from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.server.access.tls import Certificates
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.calls import Call, Watcher
from packhorse.server.watching.figures import Figures
from packhorse.server.watching.metrics import Metrics, values_of
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, steps_of_ranks

FRESH_SECONDS = 0.25
"""An older answer is replaced: many clients may ask at once."""

_LAG_EVERY_SECONDS = 1.0


class Activity(Watcher):
    """Follows open streams. Used from one event loop only.

    Args:
        metrics: show what waits and what has left; `rank_lag` is set here.
        version: of this packhorse.
        max_streams: the limit of open streams.
        num_processes: that listen at the same address.
        process: returns what the process takes of its machine.
    """

    def __init__(
        self,
        metrics: Metrics,
        version: str,
        max_streams: int,
        num_processes: int = 1,
        process: Callable[[], pb.ProcessActivity] = pb.ProcessActivity,
    ) -> None:
        self._metrics = metrics
        self._process = process
        self._about: dict[str, Any] = {
            "server_version": version,
            "process": secrets.randbits(63),
            "num_processes": num_processes,
            "max_streams": max_streams,
        }
        self._began = time.perf_counter()
        self._streams: dict[Call, pb.StreamActivity] = {}
        self._first_steps: dict[str, int] = {}  # of the block that left last, by the stream's id
        self._answer = pb.GetActivityResponse()
        self._answered_at = float("-inf")
        self._lag_at = float("-inf")

    def sent(self, call: Call, message: Any, waited_seconds: float) -> None:
        """Moves a stream on; it is listed from its first message on."""
        if not call.is_stream:
            return
        stream = self._streams.get(call)
        if stream is None:
            stream = self._streams[call] = _opened(call)
        if isinstance(message, pb.StreamBinsResponse):
            if message.HasField("header"):
                stream.num_steps, stream.digest = message.header.num_steps, message.header.digest
            else:
                block = message.block
                stride = call.request.topology.workers_per_rank  # type: ignore[union-attr]
                stream.next_step = block.first_step + block.num_steps * stride
                self._first_steps[stream.id] = block.first_step
        self._measure_lag()

    def ended(self, call: Call) -> None:
        """Forgets a stream."""
        if self._streams.pop(call, None) is not None:
            self._first_steps.pop(call.id, None)
            self._measure_lag()

    def answer(self) -> pb.GetActivityResponse:
        """Returns the answer to a client that may know everything. Not to be altered."""
        now = time.perf_counter()
        if now - self._answered_at > FRESH_SECONDS:
            self._answered_at = now
            self._answer = pb.GetActivityResponse(
                uptime_seconds=now - self._began,
                streams=[_now(call, stream, now) for call, stream in self._streams.items()],
                lanes=[
                    pb.LaneActivity(name=lane, num_waiting=int(waiting))
                    for (lane,), waiting in values_of(self._metrics.lane_waiting).items()
                ],
                datasets=self._datasets(),
                process_activity=self._process(),
                **self._about,
            )
        return self._answer

    def _datasets(self) -> list[pb.DatasetActivity]:
        bins, sequences, tokens = (
            values_of(metric) for metric in (self._metrics.bins, self._metrics.sequences, self._metrics.tokens)
        )
        return [
            pb.DatasetActivity(
                name=key[0],
                num_bins=int(bins[key]),
                num_sequences=int(sequences.get(key, 0)),
                num_tokens=int(tokens.get(key, 0)),
            )
            for key in sorted(bins)
        ]

    def _measure_lag(self) -> None:
        """Sets the metric, once a second at most: it looks at every stream.

        From the end of what has left to the slowest rank, to the beginning of the block that left last to the furthest:
        ranks at the same step differ by a block, where one has asked for its next and the other is about to.
        """
        now = time.perf_counter()
        if now - self._lag_at < _LAG_EVERY_SECONDS and self._streams:
            return
        self._lag_at = now
        lags = dict.fromkeys((dataset for (dataset,) in values_of(self._metrics.rank_lag)), 0)
        streams = self._streams.values()
        begun = steps_of_ranks(streams, lambda stream: self._first_steps.get(stream.id, stream.first_step))
        for run, steps in steps_of_ranks(streams).items():
            lags[run.dataset] = max(lags.get(run.dataset, 0), max(begun[run].values()) - min(steps.values()))
        for dataset, lag in lags.items():
            self._metrics.rank_lag.labels(dataset).set(lag)


def _opened(call: Call) -> pb.StreamActivity:
    stream = pb.StreamActivity(id=call.id, method=call.name, peer=call.peer)
    request = call.request
    if isinstance(request, pb.StreamBinsRequest):
        for name in ("dataset", "epoch", "seed", "rank", "worker", "first_step"):
            setattr(stream, name, getattr(request, name))
        stream.world_size, stream.batch_size = request.topology.world_size, request.topology.batch_size
        stream.next_step = request.first_step
    return stream


def _now(call: Call, stream: pb.StreamActivity, now: float) -> pb.StreamActivity:
    """Returns a stream with its times brought up to date."""
    stream.num_messages, stream.sent_bytes, stream.open_seconds = call.num_sent, call.sent_bytes, now - call.began
    stream.blocked_seconds = call.blocked_seconds
    stream.waiting_seconds = 0.0 if call.sending_since is None else max(0.0, now - call.sending_since)
    return stream


PAGE_FRESH_SECONDS = 1.0
"""Rates are over at least this long; who asks earlier gets the same document."""

_ANSWER_SECONDS = 5.0
"""How long the event loop may take to list its streams."""

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]

DOCUMENT = "/status.json"
"""The only path with figures, and so the only one that needs a token."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one process tells of itself for the page, under the names of the document."""

    activity: pb.GetActivityResponse
    is_serving: bool
    refused_calls: dict[str, int]
    certificate_days: dict[str, float]
    waiting: list[dict[str, Any]]
    datasets: list[dict[str, Any]]


class OwnStatus:
    """Looks at this process when somebody asks, and never otherwise.

    Args:
        mixtures: the datasets and mixtures that are served.
        activity: what happens now; asked in the running loop.
        metrics: have counted refused calls, and the waiting of runs.
        certificates: whose days are counted; None without.
    """

    def __init__(
        self, mixtures: Mixtures, activity: Activity, metrics: Metrics, certificates: Certificates | None
    ) -> None:
        self._mixtures = mixtures
        self._activity = activity
        self._metrics = metrics
        self._certificates = certificates
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "waiting")
        self._facts: dict[tuple[str, str], dict[str, Any]] = {}  # by name and digest
        self._measuring: Future[None] | None = None
        self._waiting: list[dict[str, Any]] = []

    def look(self, *, with_datasets: bool = True) -> Look:
        """Returns what this process knows; not from two threads at once.

        Args:
            with_datasets: of several processes that serve the same, one is asked, since their figures cost seconds.
        """
        answer = asyncio.run_coroutine_threadsafe(self._ask(), self._loop).result(_ANSWER_SECONDS)
        if self._measuring is None or self._measuring.done():
            self._measuring = self._worker.submit(self._measure_waiting)
        certificates = {} if self._certificates is None else self._certificates.ends()
        return Look(
            activity=answer,
            is_serving=bool(values_of(self._metrics.serving).get((), 0)),
            refused_calls={reason: int(count) for (reason,), count in values_of(self._metrics.errors).items()},
            certificate_days={name: (end - time.time()) / 86_400 for name, end in certificates.items()},
            waiting=self._waiting,
            datasets=self._datasets() if with_datasets else [],
        )

    async def _ask(self) -> pb.GetActivityResponse:
        return self._activity.answer()

    def _datasets(self) -> list[dict[str, Any]]:
        """Returns all datasets' facts; forgets those of digests that are no longer served."""
        facts: dict[tuple[str, str], dict[str, Any]] = {}
        for name in self._mixtures.names():
            try:
                dataset = self._mixtures.get(name)
            except ServiceError:  # gone meanwhile
                continue
            if not isinstance(dataset, PreparedDataset | MixtureDataset):
                continue
            key = (name, dataset.manifest.digest)
            known = self._facts.get(key)
            if known is None:
                known = dataset_facts(dataset)
            facts[key] = known
        self._facts = facts
        return list(facts.values())

    def _measure_waiting(self) -> None:
        """Collects the gauge, which measures runs that are new: the next document has them."""
        self._waiting = [
            {**sample.labels, "idle_share": sample.value}
            for family in self._metrics.waiting.collect()
            for sample in family.samples
        ]


class StatusPage:
    """Makes the document of what processes tell. Safe to be used by many threads.

    Args:
        looks: asks every process that serves; the first also tells of the datasets.
        figures: makes what takes seconds, of a dataset that somebody looks at.
    """

    def __init__(self, looks: Callable[[], Sequence[Look]], figures: Figures) -> None:
        self._looks = looks
        self._figures = figures
        self._lock = threading.Lock()
        self._before: Sequence[Any] = ()
        self._asked_at = float("-inf")
        self._made: dict[str, Any] | None = None
        self._document = b""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers a path of the page, as a WSGI application."""
        path, files = environ.get("PATH_INFO", ""), page_files()
        status, more = "200 OK", []
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status, kind, content = "405 Method Not Allowed", "text/plain", b"the page changes nothing: GET it\n"
        elif path == "/":
            status, kind, content = "302 Found", "text/plain", b""
            more = [("Location", "status")]  # relative, as all paths of the page: a proxy may put a prefix before it
        elif path == DOCUMENT:
            looked = parse_qs(environ.get("QUERY_STRING", "")).get("figures", [])
            kind, content = "application/json", self.document(looked)
            if not content:
                status, kind, content = "503 Service Unavailable", "text/plain", b"no process serves yet\n"
        else:
            name = {"/status": "page.html", "/status.schema.json": "status.schema.json"}.get(path)
            kind, content = files[name or path.removeprefix("/status/")]
        headers = [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(content)))]
        start_response(status, [*headers, *more, *_HEADERS])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [content]

    @staticmethod
    def has(path: str) -> bool:
        """Whether the page has this path."""
        return path in ("/", "/status", DOCUMENT, "/status.schema.json") or (
            path.startswith("/status/") and path.removeprefix("/status/") in page_files()
        )

    def document(self, looked_at: Collection[str] = ()) -> bytes:
        """Returns the document as JSON; empty if no process serves.

        Args:
            looked_at: names of datasets whose figures are to be made.
        """
        with self._lock:
            now = time.monotonic()
            if is_old := now - self._asked_at >= PAGE_FRESH_SECONDS:
                looks = self._looks()
                self._made = self._of_looks(looks, now) if looks else None
                self._asked_at = now
            if self._made is None:
                return b""
            if self._add_figures(self._made["datasets"], looked_at) or is_old:
                self._document = json.dumps(self._made).encode()
            return self._document

    def _add_figures(self, datasets: list[dict[str, Any]], looked_at: Collection[str]) -> bool:
        """Adds what is made of each dataset to its facts; says whether anything is new."""
        is_new = False
        for facts in datasets:
            name, digest = facts["name"], facts["digest"]
            if name in looked_at and not facts["components"]:
                self._figures.look(name, digest)
            figures = self._figures.of(digest)
            is_new = is_new or facts["costly"] is not figures
            facts["costly"] = figures
        self._figures.keep({facts["digest"] for facts in datasets})
        return is_new

    def _of_looks(self, looks: Sequence[Look], now: float) -> dict[str, Any]:
        after = [_process(look.activity) for look in looks]
        activity = activity_between(self._before, after, now - self._asked_at if self._before else 0.0)
        self._before = after
        for stream in activity["streams"]:
            del stream["peer"]  # an address of a client is not for everybody who may see metrics
        first = looks[0]
        return {
            "server": {
                "host": socket.gethostname(),
                "version": first.activity.server_version,
                "wire_version": WIRE_VERSION,
                "num_processes": first.activity.num_processes,
                "is_serving": any(look.is_serving for look in looks),
                "lanes": _summed({lane.name: lane.num_waiting for lane in look.activity.lanes} for look in looks),
                "refused_calls": _summed(look.refused_calls for look in looks),
                "certificate_days": first.certificate_days,
                "waiting": list({str(row): row for look in looks for row in look.waiting}.values()),
            },
            "activity": activity,
            "datasets": [facts | {"costly": None} for facts in first.datasets],
        }


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def _process(answer: pb.GetActivityResponse) -> Any:
    """Returns an answer under the names that `activity_between` reads."""
    process = answer.process_activity
    return SimpleNamespace(
        address="",
        process=answer.process,
        server_version=answer.server_version,
        uptime_seconds=answer.uptime_seconds,
        max_streams=answer.max_streams,
        streams=answer.streams,
        waiting_in_lanes={lane.name: lane.num_waiting for lane in answer.lanes},
        sent={each.name: (each.num_bins, each.num_sequences, each.num_tokens) for each in answer.datasets},
        **{field.name: getattr(process, field.name) for field in process.DESCRIPTOR.fields},
    )
