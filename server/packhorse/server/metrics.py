"""What Prometheus scrapes.

Owns every metric's name and meaning; leaves when they move to the servicer.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from packhorse.dataset import PreparedDataset
from packhorse.server.waiting_gauge import WAITING_GAUGE, WaitingGauge

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

DATASET_GAUGES: dict[str, tuple[str, Callable[[PreparedDataset], float]]] = {
    "packhorse_dataset_packing_efficiency_ratio": (
        "Tokens per token of capacity, 0 to 1; extra_tokens and alignment count as tokens",
        lambda dataset: dataset.manifest.efficiency,
    ),
    "packhorse_dataset_real_token_ratio": (
        "Sequences' own tokens per token of capacity, 0 to 1: without extra_tokens and alignment",
        lambda dataset: dataset.manifest.own_tokens / dataset.manifest.total_capacity,
    ),
    "packhorse_dataset_padding_tokens": (
        "Tokens of capacity that an epoch leaves empty",
        lambda dataset: dataset.manifest.total_capacity - dataset.manifest.total_tokens,
    ),
    "packhorse_dataset_lower_bound_gap_ratio": (
        "Bins beyond the proven lower bound, as a share of it",
        lambda dataset: dataset.manifest.n_bins / dataset.manifest.lower_bound - 1,
    ),
    "packhorse_dataset_bins": ("Bins in an epoch", lambda dataset: dataset.manifest.n_bins),
    "packhorse_dataset_sequences": ("Sequences in an epoch", lambda dataset: dataset.manifest.n_sequences),
}

METRIC_NAMES = frozenset(
    {
        *DATASET_GAUGES,
        WAITING_GAUGE,
        "packhorse_bins_streamed_total",
        "packhorse_sequences_streamed_total",
        "packhorse_tokens_streamed_total",
        "packhorse_active_streams",
        "packhorse_first_block_seconds",
        "packhorse_block_seconds",
        "packhorse_errors_total",
    }
)
"""Every metric family, as Prometheus sees it."""


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        datasets: gives the datasets that are open now.
    """

    def __init__(self, datasets: Callable[[], list[PreparedDataset]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_DatasetCollector(datasets))
        self.waiting = WaitingGauge(datasets)
        self.registry.register(self.waiting)
        self.bins = Counter("packhorse_bins_streamed", "Bins streamed", ["dataset"], registry=self.registry)
        self.sequences = Counter(
            "packhorse_sequences_streamed", "Sequences streamed", ["dataset"], registry=self.registry
        )
        self.tokens = Counter("packhorse_tokens_streamed", "Tokens streamed", ["dataset"], registry=self.registry)
        self.active_streams = Gauge("packhorse_active_streams", "Streams open now", registry=self.registry)
        self.first_block = Histogram(
            "packhorse_first_block_seconds",
            "From a stream's request to its first block, in seconds",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.block = Histogram(
            "packhorse_block_seconds", "Making one block, in seconds", buckets=_SECONDS, registry=self.registry
        )
        self.errors = Counter(
            "packhorse_errors", "Requests that ended in an error, by reason", ["reason"], registry=self.registry
        )


class _DatasetCollector:
    """Reads the datasets' gauges when scraped, so that one that is withdrawn disappears."""

    def __init__(self, datasets: Callable[[], list[PreparedDataset]]) -> None:
        self._datasets = datasets

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields one family for each of DATASET_GAUGES."""
        for name, (meaning, value_of) in DATASET_GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=["dataset"])
            for dataset in self._datasets():
                family.add_metric([dataset.name], value_of(dataset))
            yield family
