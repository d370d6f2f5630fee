"""The metrics of several processes, combined into those of one.

Owns how values of processes are combined. The port that shows them is in `app.metrics_port`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample


class CombinedMetrics:
    """A collector for prometheus_client that combines the metrics of several processes.

    Most metrics come from the files in which prometheus_client keeps every process's values; processes that died still
    count in them. Gauges that are computed at a scrape, such as facts about datasets, are in no file: they are asked
    from the living processes, and the largest value for equal labels is shown.

    Args:
        folder: the folder of the files (PROMETHEUS_MULTIPROC_DIR of the processes).
        families: returns all metrics of every living process's registry.
    """

    def __init__(self, folder: Path, families: Callable[[], Iterable[Iterable[Metric]]]) -> None:
        # It adds itself to a registry, which nobody asks here.
        self._files = MultiProcessCollector(CollectorRegistry(), str(folder))  # type: ignore[no-untyped-call]
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yields every family of metrics once, with the values of all processes combined."""
        from_files: list[Metric] = list(self._files.collect())  # type: ignore[no-untyped-call]
        yield from from_files
        in_files = {family.name for family in from_files}
        computed: dict[str, Metric] = {}
        for family in chain.from_iterable(self._families()):
            if family.name not in in_files:
                joined = computed.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                joined.samples.extend(family.samples)
        for family in computed.values():
            largest: dict[tuple[object, ...], Sample] = {}
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                if key not in largest or sample.value > largest[key].value:
                    largest[key] = sample
            family.samples = list(largest.values())
            yield family
