"""The metrics for Prometheus: names, meanings, and the gauges of datasets and files, computed at a scrape.

Leaves the gauge of ranks that wait to `waiting`, and updating the other metrics to `servicer` and `lanes` for blocks,
to `call_metrics` for calls, to `activity` for ranks that lag, and to `process_metrics` for the process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.server.base.faults import ServiceError, reason_name
from packhorse.server.watching.waiting import WaitingGauge

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of our own histograms, in seconds."""

# Buckets of gRPC's histograms, in seconds and bytes. From gRFC A66, "Metrics Schema":
# https://github.com/grpc/proposal/blob/master/A66-otel-stats.md
# fmt: off
_CALL_SECONDS = (
    0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.013,
    0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1, 2, 5,
    10, 20, 50, 100,
)
# fmt: on
_CALL_BYTES = (0, 1 << 10, 1 << 11, *(1 << power for power in range(12, 33, 2)))

FileValues: TypeAlias = Mapping[tuple[str, str], float]
"""Values of one of FILE_GAUGES: (kind, name) → value."""

GAP_GAUGE = "packhorse_dataset_lower_bound_gap_ratio"
"""Name of a gauge that mixtures do not have, because their bins are those of their components."""

DATASET_GAUGES: dict[str, tuple[str, Callable[[PreparedDataset | MixtureDataset], float]]] = {
    "packhorse_dataset_packing_efficiency_ratio": (
        "Share of the capacity that holds tokens, 0 to 1; extra_tokens and alignment count as tokens",
        lambda dataset: dataset.manifest.efficiency,
    ),
    "packhorse_dataset_real_token_ratio": (
        "Share of the capacity that holds tokens of sequences, 0 to 1: without extra_tokens and alignment",
        lambda dataset: dataset.manifest.fed_tokens / dataset.manifest.total_capacity,
    ),
    "packhorse_dataset_padding_tokens": (
        "Tokens of capacity that an epoch leaves empty",
        lambda dataset: dataset.manifest.total_capacity - dataset.manifest.total_tokens,
    ),
    GAP_GAUGE: (
        "Bins beyond the proven lower bound, as a share of it",
        lambda dataset: dataset.manifest.num_bins / dataset.manifest.lower_bound - 1,
    ),
    "packhorse_dataset_bins": ("Bins in an epoch", lambda dataset: dataset.manifest.num_bins),
    "packhorse_dataset_sequences": ("Sequences in an epoch", lambda dataset: dataset.manifest.num_sequences),
}
"""Gauges of datasets and mixtures: name → meaning, and the function that computes the value."""

RESOURCE_GAUGE = "packhorse_dataset_resource_ratio"
RESOURCE_MEANING = "How full bins are of a resource that has a cap, such as image tiles, 0 to 1, on average"
RESOURCE_LABELS = ("dataset", "resource")

UNUSABLE_FILES, EXPIRY = "packhorse_unusable_files", "packhorse_expiry_timestamp_seconds"

FILE_GAUGES = {
    UNUSABLE_FILES: (
        "Invalid files, 1 for each: a dataset, mixture, takedown or corpus of that name, the token file, the "
        "certificates. The log gives the error; the previous content may still be in force",
        ("kind", "name"),
    ),
    EXPIRY: ("When a token or a certificate expires, in seconds since 1970", ("kind", "name")),
}
"""Gauges of the files that the server reads again when they change: name → meaning, labels."""

STREAMS = ("StreamBins", "PackStream")
"""Methods whose calls are streams."""

_OverProcesses: TypeAlias = Literal["livesum", "livemax", "livemin"]
"""How prometheus_client combines a gauge of several living processes: their sum, maximum or minimum."""


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        datasets: returns the datasets that are open now.
        file_values: name of a gauge of FILE_GAUGES → the function that returns its values; it may lack some.
        mixtures: returns the mixtures that are open now.
    """

    def __init__(
        self,
        datasets: Callable[[], list[PreparedDataset]],
        file_values: Mapping[str, Callable[[], FileValues]] | None = None,
        mixtures: Callable[[], list[MixtureDataset]] = list,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_DatasetCollector(datasets, mixtures))
        self.registry.register(_FileCollector(file_values or {}))
        self.waiting = WaitingGauge(datasets)
        self.registry.register(self.waiting)
        self._add_streams()
        self._add_calls()
        self._add_process()

    def _add_streams(self) -> None:
        self.bins = self._counter("packhorse_bins_streamed", "Bins streamed", "dataset")
        self.sequences = self._counter("packhorse_sequences_streamed", "Sequences streamed", "dataset")
        self.tokens = self._counter("packhorse_tokens_streamed", "Tokens streamed", "dataset")
        self.active_streams = self._gauge("packhorse_active_streams", "Streams open now", "method")
        self.first_block = self._histogram(
            "packhorse_first_block_seconds", "From a stream's request to its first block, in seconds", _SECONDS
        )
        self.block = self._histogram("packhorse_block_seconds", "Making one block, in seconds", _SECONDS)
        self.resumed = self._counter(
            "packhorse_streams_resumed",
            "Streams that began after step 0 of their request, for example after a lost connection",
            "dataset",
        )
        self.blocked_seconds = self._counter(
            "packhorse_flow_control_seconds",
            "How long blocks waited for clients to read, in seconds, summed over streams",
            "dataset",
        )
        self.blocked_streams = self._gauge(
            "packhorse_flow_control_streams", "Streams whose next message waits for its client to read", "method"
        )
        for each in (self.active_streams, self.blocked_streams):
            for method in STREAMS:
                each.labels(method)  # 0 until there is one
        self.rank_lag = self._gauge(
            "packhorse_rank_lag_steps",
            "How many steps the slowest rank is behind the last block of the furthest, in the run with the largest "
            "lag; counted in sent steps, over the streams open at this server",
            "dataset",
            over_processes="livemax",
        )
        self.run_digest = self._gauge(
            "packhorse_run_digest",
            "1 for each digest with which streams of a training run were opened in the last hour; a run with two of "
            "one dataset mixes data. Runs are those that their launcher names, under a hash",
            *("dataset", "run", "digest"),
            over_processes="livemax",
        )
        self.lane_waiting = self._gauge(
            "packhorse_lane_waiting", "Time slices of work that wait for a thread of their lane", "lane"
        )
        self.lane_wait = self._histogram(
            "packhorse_lane_wait_seconds",
            "How long a time slice of work waited for a thread of its lane, in seconds",
            _SECONDS,
            "lane",
        )

    def _add_calls(self) -> None:
        """Adds the metrics of calls, under the names of gRFC A66, which mean compressed sizes: we compress nothing."""
        self.errors = self._counter("packhorse_errors", "Requests that ended in an error, by reason", "reason")
        self.calls_started = self._counter("grpc_server_call_started", "Calls that began", "grpc_method")
        of_calls = ("grpc_method", "grpc_status")
        self.call_seconds = self._histogram(
            "grpc_server_call_duration_seconds",
            "How long a call took, in seconds; for a stream, how long it was open",
            _CALL_SECONDS,
            *of_calls,
        )
        self.sent_bytes = self._histogram(
            "grpc_server_call_sent_total_compressed_message_size_bytes",
            "Size of all messages sent in a call, in bytes",
            _CALL_BYTES,
            *of_calls,
        )
        self.received_bytes = self._histogram(
            "grpc_server_call_rcvd_total_compressed_message_size_bytes",
            "Size of all messages received in a call, in bytes",
            _CALL_BYTES,
            *of_calls,
        )

    def _add_process(self) -> None:
        self.serving = self._gauge("packhorse_serving", "Processes that serve: 0 while health is NOT_SERVING")
        self.connections = self._gauge("packhorse_connections", "Open connections to the address of --listen")
        self.connections_without_request = self._gauge(
            "packhorse_connections_without_request", "Open connections from which no request has come"
        )
        self.bytes_without_request = self._counter(
            "packhorse_bytes_without_request",
            "Bytes received over connections beside the messages of requests: handshakes, headers and "
            "acknowledgements, which are few, and floods",
        )
        self.memory = self._gauge(
            "packhorse_memory_bytes",
            "The server's own memory, in bytes; mapped files, such as pools, do not count",
        )
        self.memory_limit = self._gauge(
            "packhorse_memory_limit_bytes",
            "Memory of the container, or of the machine, in bytes",
            over_processes="livemin",
        )
        self.open_files = self._gauge(
            "packhorse_open_files",
            "Open files and connections, in the process that has most",
            over_processes="livemax",
        )
        self.open_files_limit = self._gauge(
            "packhorse_open_files_limit", "Files and connections that a process may open", over_processes="livemin"
        )
        self.lines_left_out = self._counter(
            "packhorse_log_lines_left_out", "Lines of the log that were left out because nobody read them in time"
        )
        self.processor_seconds = self._counter("packhorse_processor_seconds", "Processor time, in seconds")

    def count_refusal(self, error: ServiceError) -> None:
        """Counts a request that ended in an error, whether the interceptor or its method refused it."""
        self.errors.labels(reason_name(error.reason)).inc()

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str, over_processes: _OverProcesses = "livesum") -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry, multiprocess_mode=over_processes)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)


@cache
def metric_names() -> frozenset[str]:
    """Returns the name of every metric family, as Prometheus sees it."""
    families = Metrics(list).registry.collect()  # of no datasets
    return frozenset(f"{each.name}_total" if each.type == "counter" else each.name for each in families)


def values_of(metric: Counter | Gauge) -> dict[tuple[str, ...], float]:
    """Returns a metric's values in this process: the values of its labels → its value."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class _DatasetCollector:
    """Computes DATASET_GAUGES and RESOURCE_GAUGE at a scrape, so that a withdrawn dataset's gauges disappear."""

    def __init__(
        self, datasets: Callable[[], list[PreparedDataset]], mixtures: Callable[[], list[MixtureDataset]]
    ) -> None:
        self._datasets = datasets
        self._mixtures = mixtures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields each gauge with its values."""
        for name, (meaning, value_of) in DATASET_GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=["dataset"])
            for dataset in [*self._datasets(), *(self._mixtures() if name != GAP_GAUGE else ())]:
                family.add_metric([dataset.name], value_of(dataset))
            yield family
        fullness = GaugeMetricFamily(RESOURCE_GAUGE, RESOURCE_MEANING, labels=RESOURCE_LABELS)
        for dataset in self._datasets():
            manifest = dataset.manifest
            for each in manifest.resources:
                if each.cap is not None:
                    fullness.add_metric([dataset.name, each.name], each.total / (each.cap * manifest.num_bins))
        yield fullness


class _FileCollector:
    """Computes FILE_GAUGES at a scrape."""

    def __init__(self, values: Mapping[str, Callable[[], FileValues]]) -> None:
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields each gauge with its values."""
        for name, (meaning, labels) in FILE_GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=labels)
            for key, value in self._values[name]().items() if name in self._values else ():
                family.add_metric(key, value)
            yield family
