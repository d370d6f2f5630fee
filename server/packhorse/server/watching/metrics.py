"""What Prometheus scrapes.

Owns every metric's name and meaning. Leaves when they move to `servicer` and `lanes` for blocks,
`calls` for calls, `activity` for ranks that lag, and `resources` for the process.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from packhorse.dataset import PreparedDataset
from packhorse.server.watching.waiting_gauge import WAITING_GAUGE, WaitingGauge

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

# gRFC A66, "Metrics Schema": https://github.com/grpc/proposal/blob/master/A66-otel-stats.md
# fmt: off
_CALL_SECONDS = (
    0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.013,
    0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1, 2, 5,
    10, 20, 50, 100,
)
# fmt: on
_CALL_BYTES = (0, 1 << 10, 1 << 11, *(1 << power for power in range(12, 33, 2)))

Values: TypeAlias = Mapping[tuple[str, str], float]
"""(kind, name) → value."""

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

UNUSABLE_FILES, EXPIRY = "packhorse_unusable_files", "packhorse_expiry_timestamp_seconds"

SERVING = "packhorse_serving"
"""Which /healthz goes by."""

ASKED_GAUGES = {
    UNUSABLE_FILES: (
        "Files that are not as they must be, 1 for each: a dataset, mixture or takedown of that name, the tokens, the "
        "certificates. The log says what is wrong; what was read before may still be in force",
        ("kind", "name"),
    ),
    EXPIRY: ("When a token or a certificate ends, in seconds since 1970", ("kind", "name")),
}
"""Gauges whose values are asked for when they are scraped: meaning, labels."""

METRIC_NAMES = frozenset(
    {
        *DATASET_GAUGES,
        *ASKED_GAUGES,
        WAITING_GAUGE,
        SERVING,
        "packhorse_connections",
        "packhorse_connections_without_request",
        "packhorse_bytes_without_request_total",
        "packhorse_memory_bytes",
        "packhorse_memory_limit_bytes",
        "packhorse_open_files",
        "packhorse_open_files_limit",
        "packhorse_processor_seconds_total",
        "packhorse_bins_streamed_total",
        "packhorse_sequences_streamed_total",
        "packhorse_tokens_streamed_total",
        "packhorse_active_streams",
        "packhorse_first_block_seconds",
        "packhorse_block_seconds",
        "packhorse_errors_total",
        "packhorse_streams_resumed_total",
        "packhorse_flow_control_seconds_total",
        "packhorse_flow_control_streams",
        "packhorse_rank_lag_steps",
        "packhorse_lane_waiting",
        "packhorse_lane_wait_seconds",
        "grpc_server_call_started_total",
        "grpc_server_call_duration_seconds",
        "grpc_server_call_sent_total_compressed_message_size_bytes",
        "grpc_server_call_rcvd_total_compressed_message_size_bytes",
    }
)
"""Every metric family, as Prometheus sees it."""


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        datasets: gives the datasets that are open now.
        asked: what gives the values of ASKED_GAUGES, by (kind, name); a gauge that it leaves out has none.
    """

    def __init__(
        self, datasets: Callable[[], list[PreparedDataset]], asked: Mapping[str, Callable[[], Values]] | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_DatasetCollector(datasets))
        self.registry.register(_AskedCollector(asked or {}))
        self._measure_the_process()
        self.waiting = WaitingGauge(datasets)
        self.registry.register(self.waiting)
        self.bins = Counter("packhorse_bins_streamed", "Bins streamed", ["dataset"], registry=self.registry)
        self.sequences = Counter(
            "packhorse_sequences_streamed", "Sequences streamed", ["dataset"], registry=self.registry
        )
        self.tokens = Counter("packhorse_tokens_streamed", "Tokens streamed", ["dataset"], registry=self.registry)
        self.active_streams = Gauge(
            "packhorse_active_streams", "Streams open now", registry=self.registry, multiprocess_mode="livesum"
        )
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
        self.resumed = Counter(
            "packhorse_streams_resumed",
            "Streams that began after step 0 of their request, as after a lost connection",
            ["dataset"],
            registry=self.registry,
        )
        self.blocked_seconds = Counter(
            "packhorse_flow_control_seconds",
            "How long blocks waited for clients to read, in seconds, summed over streams",
            ["dataset"],
            registry=self.registry,
        )
        self.blocked_streams = Gauge(
            "packhorse_flow_control_streams",
            "Streams whose next message waits for its client to read",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.rank_lag = Gauge(
            "packhorse_rank_lag_steps",
            "How many steps the slowest rank is behind the furthest, in the run where it is most; counted in steps "
            "that have left, over the streams that are open at this server",
            ["dataset"],
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.lane_waiting = Gauge(
            "packhorse_lane_waiting",
            "Time slices of work that wait for a thread of their lane",
            ["lane"],
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.lane_wait = Histogram(
            "packhorse_lane_wait_seconds",
            "How long a time slice of work waited for a thread of its lane, in seconds",
            ["lane"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        # gRPC's own names, of gRFC A66. No message is compressed, so its size on the wire is its size.
        self.calls_started = Counter(
            "grpc_server_call_started", "Calls that began", ["grpc_method"], registry=self.registry
        )
        of_calls = ["grpc_method", "grpc_status"]
        self.call_seconds = Histogram(
            "grpc_server_call_duration_seconds",
            "How long a call took, in seconds; a stream's is how long it was open",
            of_calls,
            buckets=_CALL_SECONDS,
            registry=self.registry,
        )
        self.sent_bytes = Histogram(
            "grpc_server_call_sent_total_compressed_message_size_bytes",
            "Size of all messages that left in a call, in bytes",
            of_calls,
            buckets=_CALL_BYTES,
            registry=self.registry,
        )
        self.received_bytes = Histogram(
            "grpc_server_call_rcvd_total_compressed_message_size_bytes",
            "Size of all messages that came in a call, in bytes",
            of_calls,
            buckets=_CALL_BYTES,
            registry=self.registry,
        )

    def _measure_the_process(self) -> None:
        """Makes what `resources` moves."""

        def gauge(name: str, meaning: str, of_all: Literal["livesum", "livemax", "livemin"]) -> Gauge:
            return Gauge(f"packhorse_{name}", meaning, registry=self.registry, multiprocess_mode=of_all)

        self.serving = gauge("serving", "Processes that serve: 0 while health is NOT_SERVING", "livesum")
        self.connections = gauge("connections", "Connections that are open, to the address of --listen", "livesum")
        self.connections_without_request = gauge(
            "connections_without_request", "Open connections from which no request has come", "livesum"
        )
        self.bytes_without_request = Counter(
            "packhorse_bytes_without_request",
            "What came over connections beside the messages of requests, in bytes: handshakes, headers and "
            "acknowledgements, which are little, and what floods send",
            registry=self.registry,
        )
        self.memory = gauge(
            "memory_bytes", "Memory of the server's own, in bytes; mapped files, such as pools, do not count", "livesum"
        )
        self.memory_limit = gauge(
            "memory_limit_bytes", "Memory that the container, or the machine, has for all in it, in bytes", "livemin"
        )
        self.open_files = gauge(
            "open_files", "Files and connections that are open, in the process that has most", "livemax"
        )
        self.open_files_limit = gauge("open_files_limit", "Files and connections that a process may open", "livemin")
        self.processor_seconds = Counter(
            "packhorse_processor_seconds", "Processor time, in seconds", registry=self.registry
        )


def values_of(metric: Counter | Gauge) -> dict[tuple[str, ...], float]:
    """Returns a metric's values in this process, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


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


class _AskedCollector:
    """Asks for the values of ASKED_GAUGES when scraped."""

    def __init__(self, asked: Mapping[str, Callable[[], Values]]) -> None:
        self._asked = asked

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields one family for each."""
        for name, (meaning, labels) in ASKED_GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=labels)
            for key, value in self._asked[name]().items() if name in self._asked else ():
                family.add_metric(key, value)
            yield family
