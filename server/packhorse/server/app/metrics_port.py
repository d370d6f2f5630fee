"""The metrics' port: /metrics for Prometheus, /healthz for probes and /status for people.

Owns its sockets and threads. Leaves what each path answers, and who may ask for it, to `metrics_paths`, the metrics to
`metrics`, and certificates to `access.tls`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from packhorse.parameters import parameter
from packhorse.server.access.bearer_tokens import TokenFile
from packhorse.server.access.tls import Certificates
from packhorse.server.app.config import ServeConfig, split_address
from packhorse.server.app.metrics_paths import App, MetricsPaths
from packhorse.server.app.status_page import Page

_LOG = logging.getLogger(__name__)

SILENCE_SECONDS = 10.0
"""Silence after which a connection is closed, because each connection has a thread."""

CONNECTION_SECONDS = 30.0
"""Age at which a connection is closed in any case: a client that sends a byte now and then never times out."""

MOST_CONNECTIONS = 64
"""Most open connections; further ones are closed at once."""


class _Handler(WSGIRequestHandler):
    """Answers the requests of one connection. Logs only at debug, and no trace for a client that leaves."""

    timeout = SILENCE_SECONDS

    def handle(self) -> None:
        try:
            super().handle()
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        _LOG.debug(format, *args)


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers /metrics, /healthz and /status in threads. It begins when it is made, and ends at `shutdown`.

    Attributes:
        url: the URL of /metrics.

    Args:
        host: the address or name to listen on.
        port: the port; 0 for a free one.
        app: the WSGI application that answers requests.
        certificates: the certificates for HTTPS; None for HTTP.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, app: App, certificates: Certificates | None) -> None:
        is_ipv6 = ":" in host
        if is_ipv6:
            self.address_family = AF_INET6
        self._certificates = certificates
        self._permits = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open_until: dict[socket, float] = {}  # connection → time, by `time.monotonic`, at which it is ended
        super().__init__((host, port), _Handler)
        scheme = "http" if certificates is None else "https"
        host_in_url = f"[{host}]" if is_ipv6 else host
        self.url = f"{scheme}://{host_in_url}:{self.server_port}/metrics"
        self.set_app(app)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers a connection in a thread of its own, if there is a permit."""
        if not self._permits.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._permits.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection, and gives its permit back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._permits.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answers a connection; a slow handshake holds up its own thread only."""
        if self._certificates is None:
            with self._ended_if_too_long(request):
                super().finish_request(request, client_address)
            return
        plain: socket = request
        plain.settimeout(SILENCE_SECONDS)
        with (
            self._certificates.ssl_context().wrap_socket(plain, server_side=True) as secure,
            self._ended_if_too_long(secure),
        ):
            super().finish_request(secure, client_address)

    @contextmanager
    def _ended_if_too_long(self, connection: socket) -> Iterator[None]:
        """Lets `service_actions` end the connection if it lasts longer than CONNECTION_SECONDS."""
        self._open_until[connection] = time.monotonic() + CONNECTION_SECONDS
        try:
            yield
        finally:
            del self._open_until[connection]

    def service_actions(self) -> None:
        """Ends connections whose time is over; called twice a second."""
        now = time.monotonic()
        for connection, end in list(self._open_until.items()):
            if now > end:
                with suppress(OSError):
                    # Also under TLS only the plain socket's method: the connection's thread still uses the TLS layer.
                    socket.shutdown(connection, SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs one line for a connection that broke."""
        _LOG.debug("metrics connection of %s broke", client_address, exc_info=True)


def listen_for_metrics(
    config: ServeConfig,
    registry: CollectorRegistry,
    is_serving: Callable[[], bool],
    certificates: Certificates | None,
    tokens: TokenFile | None,
    page: Page | None = None,
) -> MetricsServer | None:
    """Returns a running server of metrics, if the options name an address for one.

    Args:
        config: the options.
        registry: the registry of the metrics.
        is_serving: called for each request of /healthz; may take some seconds.
        certificates: the certificates for HTTPS; None for HTTP.
        tokens: the token file, if a scrape needs a token for METRICS; None if everyone may scrape.
        page: the status page; None for none.

    Raises:
        OSError: the address cannot be listened on.
    """
    if config.metrics_listen is None:
        return None
    host, port = split_address("metrics_listen", config.metrics_listen)
    answers = MetricsPaths(make_wsgi_app(registry), is_serving, tokens, page)
    try:
        return MetricsServer(host, port, answers, certificates)
    except OSError as error:
        raise OSError(parameter("metrics_listen") + f" {config.metrics_listen}: {error.strerror}") from None
