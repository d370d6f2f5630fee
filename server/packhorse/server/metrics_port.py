"""The port that Prometheus scrapes.

Owns its sockets and threads; leaves what is scraped to `metrics`.
"""

import logging
import threading
from socket import AF_INET6
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

_LOG = logging.getLogger(__name__)

SILENCE_SECONDS = 10.0
"""A connection that says nothing for so long is closed: each holds a thread."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def handle(self) -> None:
        try:
            super().handle()
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        _LOG.debug(format, *args)


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers /metrics in threads until it is shut down; running once made.

    Args:
        host: to listen on.
        port: 0 for a free one.
        registry: what is scraped.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Handler)
        self.set_app(make_wsgi_app(registry))
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs one line for a connection that broke."""
        _LOG.debug("metrics connection of %s broke", client_address, exc_info=True)
