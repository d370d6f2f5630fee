"""A running server: sockets, health, reflection, metrics, and a shutdown that loses nothing and ends in time.

Owns the process's life. Leaves requests to `servicer`, listening again to `listening`, and several processes to
`processes`.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from packhorse.dataset import PreparedDatasetError
from packhorse.server.access.access import Guard
from packhorse.server.access.config import OVERDUE_SECONDS, ServeConfig
from packhorse.server.access.tls import Certificates
from packhorse.server.access.tokens import TokenFile
from packhorse.server.app.processes import Sibling
from packhorse.server.app.shrinking import survive_shrinking_files
from packhorse.server.app.warm_up import WarmUp
from packhorse.server.base.cores import allow_descriptors
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.logs import GRPC_LOGGER, Sparing
from packhorse.server.base.status import reason_name
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures, RunProgress
from packhorse.server.lanes.lanes import Lane, Lanes
from packhorse.server.lanes.stream_limit import StreamLimit
from packhorse.server.methods.backend import Backend, installed_version
from packhorse.server.methods.requests import MAX_MESSAGE_BYTES
from packhorse.server.service.listening import Accepting, Listening
from packhorse.server.service.receiving import Decoding, Gate, Receiving
from packhorse.server.service.servicer import PackingServicer
from packhorse.server.watching.activity import Activity
from packhorse.server.watching.calls import CallLog, CallMetrics, Calls
from packhorse.server.watching.condition import NO_BLOCKS, Condition, asked_gauges, nothing_served
from packhorse.server.watching.connections import Connections
from packhorse.server.watching.metrics import Metrics
from packhorse.server.watching.metrics_port import MOST_CONNECTIONS, listen_for_metrics
from packhorse.server.watching.resources import Measuring
from packhorse.server.watching.tracing import Tracing
from packhorse.v1 import packing_pb2, packing_pb2_grpc
from packhorse.wire import give_back_freed_memory, keep_freed_memory

_LOG = logging.getLogger(__name__)

SERVICE_NAME = packing_pb2.DESCRIPTOR.services_by_name["PackingService"].full_name

PROBE_SECONDS = 10.0
"""How long a lane of streams may take to answer before health turns NOT_SERVING; it is asked again at once."""

_PROBE_EVERY_SECONDS = 2.0

_WATCH_EVERY_SECONDS = 10.0

_TOLD_AFTER_SECONDS = 1.0
"""Kernels that are read from Numba's cache are there sooner."""

_SWITCH_SECONDS = 0.0005
"""How long a thread that computes in Python may keep the interpreter when another wants it. Python's own 5 ms would let
one packing thread take most of every stream's time."""

_COLLECT_EVERY = 20_000
"""Objects more than before, after which Python looks for cycles among them. A call holds dozens as long as it is open:
by Python's own 700, a tenth of the time in which a thousand streams opened went into looking through theirs."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + (1 << 20)),
    ("grpc.max_receive_message_length", 4 << 20),  # a PackSequences of a million lengths below 2^28
    ("grpc.keepalive_time_ms", 60_000),  # a client that vanished without a word gives its PackStream's permit back
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.bdp_probe", 0),  # it lets callers send ahead more and more; so a call that is not read holds 64 KiB
)

_MORE_CONNECTIONS = 256
"""Connections beside one for each stream: health checks, single answers, clients that come back."""

_CALLS_PER_CONNECTION = 128
"""At once; more wait in their client. A call whose metadata expands beyond the limit keeps half a megabyte in gRPC, and
a peer need not end it: with 1,280 calls one connection took two gigabytes."""


async def serve(
    config: ServeConfig, *, ready: Callable[[str, str | None, list[str]], None], sibling: Sibling | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then drains: streams end at a block, and clients go on elsewhere.

    A second signal ends the drain. SIGHUP looks for changed datasets at once. Threads may still be inside kernels
    afterwards, which nothing can end: leave the process by `os._exit`.

    Args:
        config: how.
        ready: called once with the address listened on, the URL of the metrics or None, and the datasets' names.
        sibling: where this process is one of several, what it shares with them.

    Raises:
        PreparedDatasetError: no dataset can be served.
        OSError: an address cannot be listened on.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    accepting = Accepting()
    asyncio.get_running_loop().set_task_factory(accepting.make_task)
    keep_freed_memory()
    logging.getLogger(GRPC_LOGGER).addFilter(Sparing())
    certificates = None if config.tls_files is None else Certificates(config.tls_files)
    tokens = None if config.token_file is None else TokenFile(config.token_file)
    _warn_of_plain_text(config)
    allow_descriptors(config.max_streams + _MORE_CONNECTIONS + MOST_CONNECTIONS)
    catalog = Catalog(config.data_root)
    mixtures = Mixtures(catalog)
    if not mixtures.names():  # opens them
        raise PreparedDatasetError(nothing_served(mixtures))
    give_back_freed_memory()
    survive_shrinking_files()
    metrics = Metrics(catalog.opened, asked_gauges(mixtures, tokens, certificates))
    connections = Connections()
    measuring = Measuring(metrics, connections)
    lanes = Lanes.for_this_machine(config.processes)
    lanes.measure(metrics)
    limit = StreamLimit(config.max_streams) if sibling is None else sibling.limit
    activity = Activity(metrics, installed_version(), config.max_streams, config.processes, measuring.activity)
    backend = Backend(
        mixtures,
        saw_run=metrics.waiting.saw,
        num_streams=lambda: limit.num_open,
        reached=RunProgress() if sibling is None else sibling.reached,
    )
    servicer = PackingServicer(backend, metrics, lanes, limit, activity.answer)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    tracing = None if config.otlp_endpoint is None else Tracing(config.otlp_endpoint, installed_version())
    calls = Calls([CallMetrics(metrics), activity, CallLog(), connections, *([] if tracing is None else [tracing])])

    gate = Gate(SERVICE_NAME)

    def bound(address: str) -> tuple[grpc.aio.Server, str]:
        guard = None if tokens is None else Guard(tokens, on_refusal)
        server = _server(servicer, health_servicer, config, (Receiving(on_refusal), calls, gate), guard)
        return server, _bind(server, address, certificates)

    def on_refusal(error: ServiceError) -> None:
        metrics.errors.labels(reason_name(error.reason)).inc()

    listening = Listening(bound, config.listen, accepting)
    connections.listen(listening.address)
    metrics_server = listen_for_metrics(config, metrics.registry, certificates, tokens)

    stopping, hurrying, looking = _signals(config.grace_seconds)
    for name in ("", SERVICE_NAME):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await listening.begin()
    warm_up = WarmUp(wide=any(dataset.plan.is_wide for dataset in catalog.opened()))
    await _get_kernels(warm_up, stopping)
    gate.open()
    gc.set_threshold(_COLLECT_EVERY)
    gc.freeze()  # what is there now stays, so no collection walks over it while streams wait
    condition = Condition(health_servicer, SERVICE_NAME, metrics)
    await condition.set(NO_BLOCKS, "")
    looks = (
        asyncio.create_task(_probe((lanes.streams, lanes.small_blocks), condition)),
        asyncio.create_task(_watch(catalog, mixtures, looking, condition)),
        asyncio.create_task(measuring.go_on()),
    )
    ready(listening.address, None if metrics_server is None else metrics_server.url, mixtures.names())
    if sibling is not None:
        sibling.begin(metrics.registry, mixtures.names())
    try:
        going_on, asked = asyncio.ensure_future(listening.go_on()), asyncio.ensure_future(stopping.wait())
        await asyncio.wait((going_on, asked), return_when=asyncio.FIRST_COMPLETED)
        if going_on.done():
            going_on.result()
        going_on.cancel()
        _LOG.info("draining for at most %g seconds; a second signal ends it", config.grace_seconds)
        for look in looks:
            look.cancel()
        metrics.serving.set(0)
        await health_servicer.enter_graceful_shutdown()
        servicer.drain()
        stopped = asyncio.ensure_future(listening.stop(config.grace_seconds))
        enough = (asyncio.ensure_future(servicer.only_unread()), asyncio.ensure_future(hurrying.wait()))
        await asyncio.wait((stopped, *enough), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            await listening.stop(None)
        await stopped
        for waiting in enough:
            waiting.cancel()
    finally:
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        if metrics_server is not None:
            metrics_server.shutdown()
        lanes.close()


async def _get_kernels(warm_up: WarmUp, stopping: asyncio.Event) -> None:
    """Gets kernels ready while the port answers, and says so where it takes time; ends early where a signal comes.

    Args:
        warm_up: gets what every stream needs before this returns, and the rest afterwards.
        stopping: set by a signal.
    """
    loop = asyncio.get_running_loop()
    are_ready: asyncio.Future[None] = loop.create_future()

    def get() -> None:
        try:
            warm_up.before_serving()
        except Exception as error:
            loop.call_soon_threadsafe(are_ready.set_exception, error)
        else:
            loop.call_soon_threadsafe(are_ready.set_result, None)
            try:
                warm_up.while_serving()
            except Exception:
                _LOG.exception("a kernel could not be compiled ahead; the first request that needs it compiles it")

    threading.Thread(
        target=get, name="warm-up", daemon=True
    ).start()  # nothing waits for it where the server is stopped
    stopped = asyncio.ensure_future(stopping.wait())
    done, _ = await asyncio.wait((are_ready, stopped), timeout=_TOLD_AFTER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        _LOG.info(
            "getting kernels ready: they are compiled once after an install, in seconds, and else read from a cache "
            "on disk; health is NOT_SERVING until then"
        )
        await asyncio.wait((are_ready, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if are_ready.done():
        are_ready.result()


async def _watch(catalog: Catalog, mixtures: Mixtures, asked: asyncio.Event, condition: Condition) -> None:
    """Looks for datasets that are new or were prepared anew, now and then and when it is asked; and at takedowns.

    Health is NOT_SERVING while nothing can be served: clients then wait for it, or go elsewhere, instead of failing.
    """
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), _WATCH_EVERY_SECONDS)
        asked.clear()
        try:
            await asyncio.to_thread(catalog.refresh)
            await asyncio.to_thread(mixtures.tell_unknown_ids)
        except OSError as error:
            _LOG.error("the data root cannot be read: %s", error)
        names = await asyncio.to_thread(mixtures.names)
        await condition.set("datasets", "" if names else nothing_served(mixtures))


def _server(
    servicer: PackingServicer,
    health_servicer: health.aio.HealthServicer,  # type: ignore[name-defined]
    config: ServeConfig,
    outer: tuple[Any, ...],
    guard: Guard | None,
) -> grpc.aio.Server:
    """Returns a gRPC server of our services, which listens nowhere yet."""
    inner = (Decoding(SERVICE_NAME),) if guard is None else (guard, Decoding(SERVICE_NAME))
    connections = config.max_streams + _MORE_CONNECTIONS
    server = grpc.aio.server(
        options=(
            *_OPTIONS,
            ("grpc.so_reuseport", int(config.processes > 1)),  # else a second server on the port is an error
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server.max_pending_requests", connections),  # gRPC cancels what comes beyond, and tells nobody why
            ("grpc.server.max_pending_requests_hard_limit", connections),
            ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
        ),
        interceptors=(*outer, *inner),
    )
    packing_pb2_grpc.add_PackingServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if config.reflection:
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def _signals(grace_seconds: float) -> tuple[asyncio.Event, asyncio.Event, asyncio.Event]:
    """Listens to signals; returns what the first SIGTERM or SIGINT sets, what the second, and what SIGHUP."""
    stopping, hurrying, looking = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            hurrying.set()
            return
        stopping.set()
        overdue = threading.Timer(grace_seconds + OVERDUE_SECONDS, os._exit, (1,))
        overdue.daemon = True
        overdue.start()

    def look() -> None:
        _LOG.info("SIGHUP: looking for changed datasets; SIGTERM drains and ends the server")
        looking.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, look)
    return stopping, hurrying, looking


async def _probe(lanes: Sequence[Lane], condition: Condition) -> None:
    """Sets the service's health by whether all lanes answer."""
    while True:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for answer in [lane.submit(int) for lane in lanes]:
                    await answer
            await condition.set(NO_BLOCKS, "")
            await asyncio.sleep(_PROBE_EVERY_SECONDS)
        except TimeoutError:
            await condition.set(NO_BLOCKS, f"no block could be made for {PROBE_SECONDS:g} seconds")


def _warn_of_plain_text(config: ServeConfig) -> None:
    """Says in the log what other machines can read."""
    if config.tls_files is None:
        for flag, address in config.remote_addresses.items():
            _LOG.warning("%s %s is plain text (--insecure): whoever reaches it can read and alter it", flag, address)


def _bind(server: grpc.aio.Server, listen: str, certificates: Certificates | None) -> str:
    """Listens on HOST:PORT, with TLS where there are certificates, or on unix:PATH; returns the real address."""
    is_plain = certificates is None or listen.startswith("unix:")
    if listen.startswith("unix:"):
        _check_socket(Path(listen.removeprefix("unix:")))
    try:
        if certificates is None or is_plain:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.grpc_credentials())
    except RuntimeError:
        raise OSError(f"--listen {listen}: the address is in use or cannot be listened on") from None
    if listen.startswith("unix:"):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


def _check_socket(path: Path) -> None:
    """Refuses a socket that is listened on, and every other file: gRPC would silently take the path over."""
    if not path.exists():
        return
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:  # of a server that was killed
                return
    raise OSError(f"--listen unix:{path}: the path is in use")
