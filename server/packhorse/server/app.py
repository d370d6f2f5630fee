"""A running server: sockets, health, reflection, metrics, and a shutdown that loses nothing.

Owns the process's life; leaves requests to the servicer.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from packhorse.server.backend import Backend
from packhorse.server.catalog import Catalog
from packhorse.server.config import ServeConfig, split_address
from packhorse.server.kernels import compile_kernels
from packhorse.server.metrics import Metrics
from packhorse.server.requests import MAX_MESSAGE_BYTES
from packhorse.server.servicer import PackingServicer
from packhorse.server.shrinking import survive_shrinking_files
from packhorse.v1 import packing_pb2, packing_pb2_grpc

_LOG = logging.getLogger(__name__)

SERVICE_NAME = packing_pb2.DESCRIPTOR.services_by_name["PackingService"].full_name

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a silent share
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + (1 << 20)),
    ("grpc.max_receive_message_length", 4 << 20),  # a PackSequences of a million lengths below 2^28
    ("grpc.keepalive_time_ms", 60_000),  # a client that vanished without a word gives its PackStream's place back
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


async def serve(config: ServeConfig, *, ready: Callable[[str, str | None, list[str]], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains: streams end at a block, and clients go on elsewhere.

    Args:
        config: how.
        ready: called once with the address listened on, the URL of the metrics or None, and the datasets' names.

    Raises:
        PreparedDatasetError: no dataset can be served.
        OSError: an address cannot be listened on.
    """
    catalog = Catalog(config.data_root)
    compile_kernels()
    survive_shrinking_files()
    metrics = Metrics(catalog.opened)
    executor = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="kernels")
    servicer = PackingServicer(Backend(catalog), metrics, executor, config.max_streams)
    server = grpc.aio.server(options=_OPTIONS)
    packing_pb2_grpc.add_PackingServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = _bind(server, config.listen)
    metrics_server = None
    metrics_url = None
    if config.metrics_listen is not None:
        host, port = split_address("--metrics-listen", config.metrics_listen)
        try:
            metrics_server, _ = start_http_server(port, host, registry=metrics.registry)
        except OSError as error:
            raise OSError(f"--metrics-listen {config.metrics_listen}: {error.strerror}") from None
        metrics_url = f"http://{host}:{metrics_server.server_port}/metrics"

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    for name in ("", SERVICE_NAME):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    ready(address, metrics_url, catalog.names())
    try:
        await stopping.wait()
        _LOG.info("draining for at most %g seconds", config.grace_seconds)
        await health_servicer.enter_graceful_shutdown()
        servicer.drain()
        await server.stop(config.grace_seconds)
    finally:
        if metrics_server is not None:
            metrics_server.shutdown()
        executor.shutdown(wait=False, cancel_futures=True)


def _bind(server: grpc.aio.Server, listen: str) -> str:
    """Listens on HOST:PORT or unix:PATH and returns the address with its real port."""
    if listen.startswith("unix:"):
        _check_socket(Path(listen.removeprefix("unix:")))
    try:
        port = server.add_insecure_port(listen)
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
