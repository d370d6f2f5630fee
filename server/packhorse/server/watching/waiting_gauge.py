"""How much time the ranks of the runs that stream here wait for each other, for Prometheus.

Owns which runs are remembered and when they are measured: at a scrape, once each, on a bounded sample, so that no
stream waits for it. Leaves measuring to `packhorse.epoch.balance`.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client.core import GaugeMetricFamily

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.epoch import MAX_BINS_PER_OPTIMIZER_STEP, Waiting, idle_share, waiting_of, waiting_of_plan
from packhorse.server.datasets.served import Served
from packhorse.topology import Topology

WAITING_GAUGE = "packhorse_waiting_ratio"
"""Its name."""

MOST_RUNS = 16
"""Shapes of runs that are remembered: those that opened a stream last."""

_MEANING = (
    "Share of GPU time that ranks wait for each other, 0 to 1, if they wait at every step or once in an optimizer step"
)
_LABELS = ["dataset", "world_size", "batch_size", "accumulation", "balance", "wait"]

_Key = tuple[str, str, str, str, str]
"""The gauge's labels without the last."""


@dataclass
class _Run:
    """A run's shape, and what was measured of it."""

    dataset: "weakref.ref[PreparedDataset | MixtureDataset]"
    """Weak: what the catalog lets go of is not kept open for a gauge."""
    topology: Topology
    """With one batch size."""
    is_measured: bool = False
    waiting: Waiting | None = None


class WaitingGauge:
    """Remembers runs by their shape, and tells how long their ranks wait. Safe to be used by many threads.

    Args:
        datasets: gives the datasets that are open now; others' runs disappear.
    """

    def __init__(self, datasets: Callable[[], list[PreparedDataset]]) -> None:
        self._datasets = datasets
        self._lock = threading.Lock()
        self._runs: OrderedDict[_Key, _Run] = OrderedDict()

    def saw(self, dataset: Served, topology: Topology) -> None:
        """Remembers a run that streams; costs no measuring.

        One rank alone waits for nobody, and is not remembered. Where the batch size follows a schedule, each size that
        the epoch comes to from start_position on is remembered as a run of its own.
        """
        if not isinstance(dataset, PreparedDataset | MixtureDataset) or topology.world_size == 1:
            return
        num_left = dataset.manifest.n_bins - topology.start_position
        sizes = [
            stretch.batch_size
            for stretch in topology.stretches[:MOST_RUNS]
            if stretch.first_offset < num_left
            and stretch.bins_per_step * topology.accumulation <= MAX_BINS_PER_OPTIMIZER_STEP
        ]
        with self._lock:
            for batch_size in reversed(sizes):  # the one that it has now comes last, and so is kept longest
                self._remember(dataset, topology, batch_size)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def _remember(self, dataset: PreparedDataset | MixtureDataset, topology: Topology, batch_size: int) -> None:
        world_size, accumulation = str(topology.world_size), str(topology.accumulation)
        key: _Key = (dataset.name, world_size, str(batch_size), accumulation, topology.balance.value)
        run = self._runs.get(key)
        if run is None or run.dataset() is not dataset or run.topology.cost_linear != topology.cost_linear:
            self._runs[key] = _Run(weakref.ref(dataset), replace(topology, batch_size=batch_size, batch_schedule=None))
        self._runs.move_to_end(key)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the gauge, for both ways to wait; a run longer than its epoch has none."""
        family = GaugeMetricFamily(WAITING_GAUGE, _MEANING, labels=_LABELS)
        with self._lock:
            runs = list(self._runs.items())
        opened = self._datasets()
        for key, run in runs:
            dataset = run.dataset()
            if dataset is None or not all(each in opened for each in _datasets_of(dataset)):
                continue
            if not run.is_measured:
                run.waiting = _measured(dataset, run.topology)
                run.is_measured = True
            if run.waiting is not None:
                family.add_metric([*key, "step"], idle_share(run.waiting.at_steps))
                family.add_metric([*key, "optimizer-step"], idle_share(run.waiting.at_optimizer_steps))
        yield family


def _datasets_of(served: PreparedDataset | MixtureDataset) -> Sequence[PreparedDataset]:
    return (served,) if isinstance(served, PreparedDataset) else served.datasets


def _measured(served: PreparedDataset | MixtureDataset, topology: Topology) -> Waiting | None:
    """Measures a run; of a mixture, an epoch that its last stage is all of. None where it is longer than its epoch."""
    if isinstance(served, PreparedDataset) and not served.has_groups:
        found = waiting_of_plan(served.plan, topology, [topology.balance])
    else:  # bins of groups cost what their members do, and a mixture has no plan of its own
        number = 0 if isinstance(served, PreparedDataset) else served.settled_epoch
        found = waiting_of(served.epoch(number, seed=0), topology, [topology.balance])
    return None if found is None else found[topology.balance]
