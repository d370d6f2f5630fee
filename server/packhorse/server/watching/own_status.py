"""What one process says of itself for the status page, and opening that page if it is there.

Owns the page's one guarded path, and what the page is made of. Leaves the page, and a dataset's facts, to the shelf
(`packhorse.analysis`), and who may read it to `metrics_port`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.server.access.tls import Certificates
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.activity import Activity
from packhorse.server.watching.metrics import Metrics, Values, values_of
from packhorse.shelf import from_shelf
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire.certificates import days_until

_LOG = logging.getLogger(__name__)

DOCUMENT = "/status.json"
"""The only path with figures, and so the only one that needs a token."""


_ANSWER_SECONDS = 5.0
"""How long the event loop may take to list its streams."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one process tells of itself for the page, under the names of the document."""

    activity: pb.GetActivityResponse
    is_serving: bool
    refused_calls: dict[str, int]
    certificate_days: dict[str, float]
    unusable_files: list[dict[str, str]]
    """Kind and name of each, such as a corpus whose tokens were withdrawn."""
    waiting: list[dict[str, Any]]
    datasets: list[dict[str, Any]]


class OwnStatus:
    """Looks at this process when somebody asks, and never otherwise.

    Args:
        mixtures: the datasets and mixtures that are served.
        activity: what happens now; asked in the running loop.
        metrics: have counted refused calls, and the waiting of runs.
        certificates: whose days are counted; None without.
        unusable: returns what is in `packhorse_unusable_files`.
    """

    def __init__(
        self,
        mixtures: Mixtures,
        activity: Activity,
        metrics: Metrics,
        certificates: Certificates | None,
        unusable: Callable[[], Values],
    ) -> None:
        self._mixtures = mixtures
        self._activity = activity
        self._metrics = metrics
        self._certificates = certificates
        self._unusable = unusable
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
            certificate_days={name: days_until(datetime.fromtimestamp(end, UTC)) for name, end in certificates.items()},
            unusable_files=[{"kind": kind, "name": name} for kind, name in sorted(self._unusable())],
            waiting=self._waiting,
            datasets=self._datasets() if with_datasets else [],
        )

    async def _ask(self) -> pb.GetActivityResponse:
        return self._activity.answer()

    def _datasets(self) -> list[dict[str, Any]]:
        """Returns all datasets' facts; forgets those of digests that are no longer served."""
        facts_of = from_shelf("dataset_facts")
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
                known = facts_of(dataset)
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


class Page(Protocol):
    """The status page, as a WSGI application."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers a path of the page."""
        ...

    def has(self, path: str) -> bool:
        """Whether the page has this path."""
        ...


def open_page(looks: Callable[[], Sequence[Look]], data_root: Path) -> Page | None:
    """Returns the status page; None, and a line in the log, if this installation lacks it.

    Args:
        looks: asks every process that serves; the first also tells of the datasets.
        data_root: the folder of the datasets.
    """
    try:
        page: Page = from_shelf("status_page")(looks, data_root)
    except ImportError as error:
        _LOG.warning("no status page is served: %s", error)
        return None
    return page
