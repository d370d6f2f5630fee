"""The gauge of how long the ranks of each run wait for each other, measured at a scrape.

Owns which runs are remembered, and for how long. Leaves the measurement to `packhorse.epoch`, and all other metrics to
`metrics`.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client.core import GaugeMetricFamily

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.epoch import MAX_BINS_PER_OPTIMIZER_STEP, Waiting, idle_share, waiting_of, waiting_of_plan
from packhorse.server.datasets.protocols import Dataset
from packhorse.topology import Topology

WAITING_GAUGE = "packhorse_waiting_ratio"
WAITING_MEANING = (
    "Share of GPU time that ranks wait for each other, 0 to 1, if they wait at every step or once in an optimizer step"
)
WAITING_LABELS = ("dataset", "world_size", "batch_size", "accumulation", "balance", "wait")

MOST_RUNS = 16
"""Most shapes of runs whose waiting is shown: those that opened a stream last."""


@dataclass
class _Run:
    """The dataset and topology of a run, and how long its ranks wait."""

    dataset: "weakref.ref[PreparedDataset | MixtureDataset]"
    """A weak reference, so that no gauge keeps a dataset open that the catalog no longer has."""
    topology: Topology
    """A topology with one batch size."""
    is_measured: bool = False
    waiting: Waiting | None = None
    """The result of the measurement; None before it, and for a run longer than its epoch."""


class WaitingGauge:
    """The gauge of how long the ranks of a run wait for each other. Safe to be used by many threads.

    Remembers runs by their shape. Each is measured once, at a scrape and on a bounded sample, so that no stream waits.

    Args:
        datasets: returns the datasets that are open now; the gauge shows no runs of other datasets.
    """

    def __init__(self, datasets: Callable[[], list[PreparedDataset]]) -> None:
        self._datasets = datasets
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str, ...], _Run] = OrderedDict()  # by WAITING_LABELS without the last

    def remember(self, dataset: Dataset, topology: Topology) -> None:
        """Remembers a run that opened a stream; measures nothing.

        A run of one rank is not remembered: it waits for nobody. If the batch size follows a schedule, each size from
        start_position on is remembered as a run of its own.
        """
        if not isinstance(dataset, PreparedDataset | MixtureDataset) or topology.world_size == 1:
            return
        num_left = dataset.manifest.num_bins - topology.start_position
        sizes = [
            stretch.batch_size
            for stretch in topology.stretches[:MOST_RUNS]
            if stretch.first_offset < num_left
            and stretch.bins_per_step * topology.accumulation <= MAX_BINS_PER_OPTIMIZER_STEP
        ]
        with self._lock:
            for batch_size in reversed(sizes):  # the current size comes last, so it is remembered longest
                self._remember_size(dataset, topology, batch_size)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def _remember_size(self, dataset: PreparedDataset | MixtureDataset, topology: Topology, batch_size: int) -> None:
        """Remembers a run with one batch size as the newest; measures it again if dataset or costs have changed."""
        shape = (topology.world_size, batch_size, topology.accumulation)
        key = (dataset.name, *map(str, shape), topology.balance.value)
        run = self._runs.get(key)
        if run is None or run.dataset() is not dataset or run.topology.cost_linear != topology.cost_linear:
            self._runs[key] = _Run(weakref.ref(dataset), replace(topology, batch_size=batch_size, batch_schedule=None))
        self._runs.move_to_end(key)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the gauge: for each run, the waiting if ranks wait at every step, and once in an optimizer step."""
        family = GaugeMetricFamily(WAITING_GAUGE, WAITING_MEANING, labels=WAITING_LABELS)
        with self._lock:
            runs = list(self._runs.items())
        opened = self._datasets()
        for key, run in runs:
            dataset = run.dataset()
            if dataset is None or not all(each in opened for each in _datasets_of(dataset)):
                continue
            if not run.is_measured:
                run.waiting = _measure(dataset, run.topology)
                run.is_measured = True
            if run.waiting is not None:
                family.add_metric([*key, "step"], idle_share(run.waiting.at_steps))
                family.add_metric([*key, "optimizer-step"], idle_share(run.waiting.at_optimizer_steps))
        yield family


def _datasets_of(dataset: PreparedDataset | MixtureDataset) -> Sequence[PreparedDataset]:
    """Returns the components of a mixture, or the dataset itself."""
    return (dataset,) if isinstance(dataset, PreparedDataset) else dataset.datasets


def _measure(dataset: PreparedDataset | MixtureDataset, topology: Topology) -> Waiting | None:
    """Measures how long ranks wait; of a mixture, in an epoch of its last stage. None if an epoch is too short."""
    if isinstance(dataset, PreparedDataset) and dataset.has_templates:
        waiting = waiting_of_plan(dataset.plan, topology, [topology.balance])
    else:  # bins of groups cost what their members cost, and a mixture has no plan of its own
        epoch = 0 if isinstance(dataset, PreparedDataset) else dataset.settled_epoch
        waiting = waiting_of(dataset.epoch(epoch, seed=0), topology, [topology.balance])
    return None if waiting is None else waiting[topology.balance]
