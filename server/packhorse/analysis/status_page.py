"""The status page for people, and the JSON document that it shows.

Owns the page's URL paths, and merging the answers of all serving processes into one document. Leaves a process's own
answer to `packhorse.server.watching.own_status`, the page's files to `page_files`, rates to `activity`, and costly
figures to `figures`.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

from packhorse.analysis.activity import activity_between
from packhorse.analysis.figures import CostlyFacts
from packhorse.analysis.page_files import page_files
from packhorse.server.watching.own_status import DOCUMENT, ProcessStatus
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

PAGE_FRESH_SECONDS = 1.0
"""The least time between two looks at the processes: rates are over at least this long. A request before then gets the
same document again."""

_FILES = {"/status": "page.html", "/status.schema.json": "status.schema.json"}
"""Paths that show a file of another name; the other files have paths below /status/."""

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class StatusPage:
    """A WSGI application that answers with the page and its document. Safe to be used by many threads.

    Args:
        looks: asks every process that serves; the first answer also has the facts of the datasets.
        data_root: the folder of the datasets.
    """

    def __init__(self, looks: Callable[[], Sequence[ProcessStatus]], data_root: Path) -> None:
        self._looks = looks
        self._figures = CostlyFacts(data_root)
        self._lock = threading.Lock()
        self._servers_before: Sequence[Any] = ()
        self._asked_at = float("-inf")
        self._content: dict[str, Any] | None = None
        self._document = b""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers a request for a path that the page `has`, as WSGI prescribes."""
        path = environ.get("PATH_INFO", "")
        status, more_headers = "200 OK", []
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status, kind, content = "405 Method Not Allowed", "text/plain", b"the page changes nothing: GET it\n"
        elif path == "/":
            status, kind, content = "302 Found", "text/plain", b""
            # Relative, as all paths of the page: a proxy may put a prefix before it.
            more_headers = [("Location", "status")]
        elif path == DOCUMENT:
            looked_at = parse_qs(environ.get("QUERY_STRING", "")).get("figures", [])
            kind, content = "application/json", self.document(looked_at)
            if not content:
                status, kind, content = "503 Service Unavailable", "text/plain", b"no process serves yet\n"
        else:
            kind, content = page_files()[_FILES.get(path) or path.removeprefix("/status/")]
        headers = [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(content)))]
        start_response(status, [*headers, *more_headers, *_HEADERS])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [content]

    @staticmethod
    def has(path: str) -> bool:
        """Whether the page has this path."""
        if path.startswith("/status/"):
            return path.removeprefix("/status/") in page_files()
        return path in ("/", DOCUMENT, *_FILES)

    def document(self, looked_at: Collection[str] = ()) -> bytes:
        """Returns the document as JSON; empty if no process serves.

        Args:
            looked_at: names of datasets whose costly figures somebody looks at now.
        """
        with self._lock:
            now = time.monotonic()
            is_old = now - self._asked_at >= PAGE_FRESH_SECONDS
            if is_old:
                looks = self._looks()
                self._content = self._of_looks(looks, now) if looks else None
                self._asked_at = now
            if self._content is None:
                return b""
            if self._add_figures(self._content["datasets"], looked_at) or is_old:
                self._document = json.dumps(self._content).encode()
            return self._document

    def _add_figures(self, datasets: list[dict[str, Any]], looked_at: Collection[str]) -> bool:
        """Adds the costly figures that are computed to the facts of each dataset; returns whether any are new."""
        is_new = False
        for facts in datasets:
            name, digest = facts["name"], facts["digest"]
            if name in looked_at and not facts["components"]:
                self._figures.request(name, digest)
            figures = self._figures.of(digest)
            is_new = is_new or facts["costly"] is not figures
            facts["costly"] = figures
        self._figures.forget_others({facts["digest"] for facts in datasets})
        return is_new

    def _of_looks(self, looks: Sequence[ProcessStatus], now: float) -> dict[str, Any]:
        """Returns the document for the answers of all processes; `now` is the time of the looks, for rates."""
        servers = [_server(look.activity) for look in looks]
        seconds = now - self._asked_at if self._servers_before else 0.0  # `_asked_at` is still that of the look before
        activity = activity_between(self._servers_before, servers, seconds)
        self._servers_before = servers
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
                "unusable_files": _distinct(row for look in looks for row in look.unusable_files),
                "waiting": _distinct(row for look in looks for row in look.waiting),
            },
            "activity": activity,
            "datasets": [facts | {"costly": None} for facts in first.datasets],
        }


def _distinct(rows: Iterable[Any]) -> list[Any]:
    """Returns the rows of all processes, each once."""
    return list({str(row): row for row in rows}.values())


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def _server(answer: pb.GetActivityResponse) -> SimpleNamespace:
    """Returns a process's answer with the field names that `activity_between` reads."""
    process = answer.process_activity
    return SimpleNamespace(
        address="",  # the page shows one server, the one that it comes from
        process=answer.process,
        server_version=answer.server_version,
        uptime_seconds=answer.uptime_seconds,
        max_streams=answer.max_streams,
        streams=answer.streams,
        waiting_in_lanes={lane.name: lane.num_waiting for lane in answer.lanes},
        sent={each.name: (each.num_bins, each.num_sequences, each.num_tokens) for each in answer.datasets},
        **{field.name: getattr(process, field.name) for field in process.DESCRIPTOR.fields},
    )
