"""A running server: sockets, health, reflection, metrics, and a shutdown that loses no message and ends in time.

Owns the life of the process from its options to its end. Leaves requests to `servicer`, the address to `binding`, the
reasons for NOT_SERVING to `health`, workarounds to `base.workarounds`, and several processes to `processes`.
"""

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from packhorse.dataset import PreparedDatasetError
from packhorse.server.access.bearer_tokens import TokenFile
from packhorse.server.access.tls import Certificates
from packhorse.server.app.binding import bind
from packhorse.server.app.config import ServeConfig
from packhorse.server.app.health import LANES, BlockProbe, ServerHealth, probe, watch, why_nothing_is_served
from packhorse.server.app.metrics_port import MOST_CONNECTIONS, MetricsServer, listen_for_metrics
from packhorse.server.app.sibling import Sibling
from packhorse.server.app.signals import Signals
from packhorse.server.app.status_page import open_page
from packhorse.server.base import kernels
from packhorse.server.base.log_limit import LineLimit
from packhorse.server.base.logs import GRPC_LOGGER
from packhorse.server.base.machine import allow_descriptors, most_connections
from packhorse.server.base.release import installed_version
from packhorse.server.base.shrinking_files import survive_shrinking_files
from packhorse.server.base.workarounds import Accepting, Listening
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.datasets.run_progress import RunProgress
from packhorse.server.methods.backend import Backend
from packhorse.server.methods.sizes import MAX_MESSAGE_BYTES
from packhorse.server.service.interceptor import Interceptor
from packhorse.server.service.lanes import Lanes
from packhorse.server.service.servicer import PackingServicer
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.activity import Activity
from packhorse.server.watching.call_log import CallLog
from packhorse.server.watching.call_metrics import CallMetrics
from packhorse.server.watching.calls import SERVICE, Watcher
from packhorse.server.watching.connections import Connections
from packhorse.server.watching.file_values import file_values
from packhorse.server.watching.metrics import UNUSABLE_FILES, Metrics
from packhorse.server.watching.own_status import OwnStatus
from packhorse.server.watching.process_metrics import ProcessMetrics
from packhorse.server.watching.run_digests import RunDigests
from packhorse.server.watching.tracing import Tracing
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import give_back_freed_memory, keep_freed_memory

_LOG = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""How long a thread that computes in Python may keep the interpreter while another waits for it. With the 5 ms of
Python's default, one packing thread would take most of every stream's time."""

_COLLECT_EVERY = 20_000
"""New objects after which Python looks for reference cycles among them. An open call has dozens of objects: with
Python's own 700, a tenth of the time in which a thousand streams opened was spent looking for cycles."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + (1 << 20)),
    ("grpc.max_receive_message_length", 4 << 20),  # a PackSequences of a million lengths below 2^28
    ("grpc.keepalive_time_ms", 60_000),  # so that a vanished client's PackStream gives its permit back
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.bdp_probe", 0),  # it lets clients send ever more ahead; without it, an unread call holds 64 KiB
)

_MORE_CONNECTIONS = 256
"""Connections beside one for each stream: health checks, single answers, clients that come back."""

_CALLS_PER_CONNECTION = 128
"""Most open calls of one connection; more wait in their client. A call whose metadata expands beyond the limit takes
half a megabyte in gRPC until its peer ends it, if ever: with 1,280 such calls one connection took two gigabytes."""


class Server:
    """The parts of one process that serves, made from its options before it listens.

    Args:
        config: the options.
        sibling: if this process is one of several, what it shares with them.

    Raises:
        PreparedDatasetError: no dataset can be served.
        OSError: the address of the metrics cannot be listened on.
    """

    def __init__(self, config: ServeConfig, sibling: Sibling | None) -> None:
        self.config = config
        self.certificates = None if config.tls_files is None else Certificates(config.tls_files)
        self.tokens = None if config.token_file is None else TokenFile(config.token_file)
        self.catalog = Catalog(config.data_root)
        self.mixtures = Mixtures(self.catalog)
        self.corpora = Corpora.parse(config.tokens)
        if not self.mixtures.names():  # which opens the datasets and mixtures
            raise PreparedDatasetError(why_nothing_is_served(self.mixtures))
        file_gauges = file_values(self.mixtures, self.corpora, self.tokens, self.certificates)
        self.metrics = Metrics(self.catalog.opened, file_gauges, self.mixtures.opened)
        self.connections = Connections()
        self.process_metrics = ProcessMetrics(self.metrics, self.connections)
        self.lanes = Lanes.for_this_machine(config.processes)
        self.lanes.measure(self.metrics)
        stream_limit = StreamLimit(config.max_streams) if sibling is None else sibling.limit
        version = installed_version()
        self.activity = Activity(
            self.metrics, version, config.max_streams, config.processes, self.process_metrics.activity
        )
        self.own_status = OwnStatus(
            self.mixtures, self.activity, self.metrics, self.certificates, file_gauges[UNUSABLE_FILES]
        )
        self.server_health: ServerHealth | None = None  # None before it serves, and while it drains
        backend = Backend(
            self.mixtures,
            saw_run=self.metrics.waiting.remember,
            num_streams=lambda: stream_limit.num_open,
            reached=RunProgress() if sibling is None else sibling.reached,
            corpora=self.corpora,
        )
        self.block_probe = BlockProbe(self.catalog, backend)
        self.servicer = PackingServicer(backend, self.metrics, self.lanes, stream_limit, self.activity.answer)
        self.health_service = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self.tracing = None if config.otlp_endpoint is None else Tracing(config.otlp_endpoint, version)
        watchers: list[Watcher] = [
            CallMetrics(self.metrics),
            self.activity,
            CallLog(),
            self.connections,
            RunDigests(self.metrics),
        ]
        if self.tracing is not None:
            watchers.append(self.tracing)
        self.interceptor = Interceptor(
            watchers, self.tokens, self.metrics.count_refusal, writes_to_end=config.workarounds
        )

    def bound(self, address: str) -> tuple[grpc.aio.Server, str]:
        """Returns a gRPC server of our services that is bound to an address and not started, and the real address."""
        config = self.config
        connection_limit = most_connections(config.max_streams + _MORE_CONNECTIONS, kept=MOST_CONNECTIONS)
        self.connections.most_open = connection_limit
        server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.so_reuseport", int(config.processes > 1)),  # else a second server on the port is an error
                ("grpc.max_allowed_incoming_connections", connection_limit),
                # gRPC cancels further requests without a message.
                ("grpc.server.max_pending_requests", connection_limit),
                ("grpc.server.max_pending_requests_hard_limit", connection_limit),
                ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
            ),
            interceptors=(self.interceptor,),
        )
        packing_pb2_grpc.add_PackingServiceServicer_to_server(self.servicer, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self.health_service, server)
        if config.reflection:
            reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server, bind(server, address, self.certificates)

    def listen_for_metrics(self) -> MetricsServer | None:
        """Starts the metrics' port; returns None if the options have none."""
        page = None
        if self.config.status_page:
            page = open_page(lambda: [self.own_status.collect()], self.config.data_root)
        return listen_for_metrics(
            self.config, self.metrics.registry, self.is_serving, self.certificates, self.tokens, page
        )

    def check_corpora(self) -> None:
        """Compares the tokens that are served with the datasets' plans; runs in a thread beside serving."""
        self.corpora.check_all([self.mixtures.get(name) for name in self.mixtures.names()])

    def is_serving(self) -> bool:
        """Returns whether this server serves, by asking its event loop from another thread."""
        server_health = self.server_health  # read once: the event loop sets it to None when it drains
        return server_health is not None and server_health.ask()

    async def drain(self, listening: Listening, hurrying: asyncio.Event) -> None:
        """Ends all streams after a block; at once if a second signal comes, or nobody reads the remaining streams.

        Args:
            listening: the gRPC servers.
            hurrying: set by the second signal.
        """
        self.server_health = None
        self.metrics.serving.set(0)
        await self.health_service.enter_graceful_shutdown()
        self.servicer.drain()
        stopped = asyncio.ensure_future(listening.stop(self.config.grace_seconds))
        reasons_to_stop = (asyncio.ensure_future(self.servicer.only_unread()), asyncio.ensure_future(hurrying.wait()))
        await asyncio.wait((stopped, *reasons_to_stop), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            await listening.stop(None)
        await stopped
        for waiting in reasons_to_stop:
            waiting.cancel()


async def serve(
    config: ServeConfig, *, ready: Callable[[str, str | None, list[str]], None], sibling: Sibling | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then drains: streams end at a block, and clients continue elsewhere.

    A second signal ends the drain. SIGHUP looks for changed datasets at once. Threads may still be inside kernels
    afterwards, which nothing can end: leave the process by `os._exit`.

    Args:
        config: the options.
        ready: called once with the address listened on, the URL of the metrics or None, and the datasets' names.
        sibling: if this process is one of several, what it shares with them.

    Raises:
        PreparedDatasetError: no dataset can be served.
        OSError: an address cannot be listened on.
    """
    accepting = _prepare_process(config)
    server = Server(config, sibling)
    give_back_freed_memory()
    listening = Listening(server.bound, config.listen, accepting)
    server.connections.count_at(listening.address)
    metrics_server = server.listen_for_metrics()
    signals = Signals.caught(config.grace_seconds)
    for name in ("", SERVICE):
        await server.health_service.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await asyncio.to_thread(kernels.begin, wide=any(dataset.plan.is_wide for dataset in server.catalog.opened()))
    await listening.begin()
    gc.set_threshold(_COLLECT_EVERY)
    gc.freeze()  # no collection looks through the objects that exist by now while streams wait
    server.server_health = server_health = ServerHealth(server.health_service, server.metrics)
    await server_health.set(LANES, "")
    if server.corpora.are_asked_for:
        await server_health.set_tokens(is_whole=True)
    background = (
        asyncio.create_task(
            probe((server.lanes.streams, server.lanes.small_blocks), server.block_probe.make_block, server_health)
        ),
        asyncio.create_task(watch(server.catalog, server.mixtures, server.corpora, signals.look_now, server_health)),
        asyncio.create_task(server.process_metrics.keep_measuring()),
    )
    if config.tokens:
        threading.Thread(target=server.check_corpora, name="check-corpora", daemon=True).start()
    ready(listening.address, None if metrics_server is None else metrics_server.url, server.mixtures.names())
    if sibling is not None:
        sibling.begin(server.metrics.registry, server.own_status, server.mixtures.names(), server.is_serving)
    try:
        keeping = asyncio.ensure_future(listening.keep_listening())
        signalled = asyncio.ensure_future(signals.stopping.wait())
        await asyncio.wait((keeping, signalled), return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()  # raises the error that ended it
        keeping.cancel()
        _LOG.info("draining for at most %g seconds; a second signal ends it", config.grace_seconds)
        for task in background:
            task.cancel()
        await server.drain(listening, signals.hurrying)
    finally:
        if server.tracing is not None:
            await asyncio.to_thread(server.tracing.close)
        if metrics_server is not None:
            metrics_server.shutdown()
        server.lanes.close()


def _prepare_process(config: ServeConfig) -> Accepting | None:
    """Sets what applies to the whole process; returns the task factory of its loop, None without workarounds."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger(GRPC_LOGGER).addFilter(LineLimit())
    if config.tls_files is None:
        for option, address in config.remote_addresses.items():
            flag = f"--{option.replace('_', '-')}"
            _LOG.warning("%s %s is plain text (--insecure): whoever reaches it can read and alter it", flag, address)
    allow_descriptors(config.max_streams + _MORE_CONNECTIONS + MOST_CONNECTIONS)
    keep_freed_memory()
    if not config.workarounds:
        return None
    survive_shrinking_files()
    accepting = Accepting()
    asyncio.get_running_loop().set_task_factory(accepting.make_task)
    return accepting
