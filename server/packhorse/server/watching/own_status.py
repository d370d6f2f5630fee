"""One process's part of the status page.

Owns the facts that a process collects for the page, and the path of the page's figures, which needs a token. Leaves
opening the page to `app.status_page`, and the facts of a dataset to the shelf (`packhorse.analysis`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.server.access.tls import Certificates
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.activity import Activity
from packhorse.server.watching.metrics import FileValues, Metrics, values_of
from packhorse.shelf import from_shelf
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire.certificates import days_until

DOCUMENT = "/status.json"
"""The only path with figures, and so the only one that needs a token."""

_ANSWER_SECONDS = 5.0
"""How long the event loop may take to list its streams."""


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """The facts of one process for the page, under the names that they have in DOCUMENT."""

    activity: pb.GetActivityResponse
    is_serving: bool
    refused_calls: dict[str, int]
    """Reason of a refusal → how many calls had it."""
    certificate_days: dict[str, float]
    """File of a certificate → days until it expires."""
    unusable_files: list[dict[str, str]]
    """Kind and name of each wrong file, such as a corpus whose tokens were withdrawn."""
    waiting: list[dict[str, Any]]
    """Labels of each run in the metric of waiting, and its `idle_share`."""
    datasets: list[dict[str, Any]]
    """Facts of each dataset; empty if they were not asked for."""


class OwnStatus:
    """Collects the facts of this process for the page when somebody asks.

    Args:
        mixtures: the datasets and mixtures that are served.
        activity: the streams and lanes; asked in the running event loop.
        metrics: the counts of refused calls, and the waiting of runs.
        certificates: the server's certificates; None for plain text.
        unusable: returns the values of the metric `packhorse_unusable_files`.
    """

    def __init__(
        self,
        mixtures: Mixtures,
        activity: Activity,
        metrics: Metrics,
        certificates: Certificates | None,
        unusable: Callable[[], FileValues],
    ) -> None:
        self._mixtures = mixtures
        self._activity = activity
        self._metrics = metrics
        self._certificates = certificates
        self._unusable = unusable
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "waiting")  # measures the waiting of runs
        self._facts: dict[tuple[str, str], dict[str, Any]] = {}  # by name and digest
        self._measuring: Future[None] | None = None  # the last measurement of waiting
        self._waiting: list[dict[str, Any]] = []

    def collect(self, *, with_datasets: bool = True) -> ProcessStatus:
        """Returns the facts of this process. Call it from one thread at a time, beside the event loop's.

        Args:
            with_datasets: whether to add the facts of datasets. They take seconds, so only one of several processes,
                which serve the same, is asked for them.
        """
        activity = asyncio.run_coroutine_threadsafe(self._answer_activity(), self._loop).result(_ANSWER_SECONDS)
        if self._measuring is None or self._measuring.done():
            self._measuring = self._worker.submit(self._measure_waiting)
        expiries = {} if self._certificates is None else self._certificates.expiries()
        return ProcessStatus(
            activity=activity,
            is_serving=bool(values_of(self._metrics.serving).get((), 0)),  # it has no labels
            refused_calls={reason: int(count) for (reason,), count in values_of(self._metrics.errors).items()},
            certificate_days={name: days_until(datetime.fromtimestamp(at, UTC)) for name, at in expiries.items()},
            unusable_files=[{"kind": kind, "name": name} for kind, name in sorted(self._unusable())],
            waiting=self._waiting,
            datasets=self._datasets() if with_datasets else [],
        )

    async def _answer_activity(self) -> pb.GetActivityResponse:
        return self._activity.answer()

    def _datasets(self) -> list[dict[str, Any]]:
        """Returns the facts of all datasets, computed once for each digest; forgets digests that are not served now."""
        facts_of = from_shelf("dataset_facts")
        facts: dict[tuple[str, str], dict[str, Any]] = {}
        for name in self._mixtures.names():
            try:
                dataset = self._mixtures.get(name)
            except ServiceError:  # withdrawn since `names`
                continue
            if not isinstance(dataset, PreparedDataset | MixtureDataset):
                continue
            key = (name, dataset.manifest.digest)
            facts[key] = self._facts[key] if key in self._facts else facts_of(dataset)
        self._facts = facts
        return list(facts.values())

    def _measure_waiting(self) -> None:
        """Collects the gauge of waiting, which measures new runs. It takes long: the next `collect` has the result."""
        self._waiting = [
            {**sample.labels, "idle_share": sample.value}
            for family in self._metrics.waiting.collect()
            for sample in family.samples
        ]
