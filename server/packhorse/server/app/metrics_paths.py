"""What each path of the metrics' port answers, and who may ask for it.

Owns /healthz, and the refusal of unknown paths and of clients without a token. Leaves the sockets to `metrics_port`,
the page to `status_page`, and tokens to `bearer_tokens`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from packhorse.server.access.bearer_tokens import METRICS, TokenFile
from packhorse.server.app.status_page import Page
from packhorse.server.base.faults import ServiceError
from packhorse.server.watching.own_status import DOCUMENT
from packhorse.v1 import packing_pb2 as pb

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application: from a request's environment and `start_response` to the body of the answer."""

_NO_TOKEN = f"this needs a token for the method {METRICS}, in the header `Authorization: Bearer TOKEN`"

_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class MetricsPaths:
    """A WSGI application that answers each path of the metrics' port.

    /healthz answers everyone, as gRPC's health does. So does the status page, which gets its figures from DOCUMENT, a
    path of its own. If there is a token file, DOCUMENT and /metrics need a token.

    Args:
        metrics: the application of /metrics.
        is_serving: called for each request of /healthz; may take some seconds.
        tokens: the token file; None if no path needs a token.
        page: the status page; None for none.
    """

    def __init__(
        self, metrics: App, is_serving: Callable[[], bool], tokens: TokenFile | None, page: Page | None
    ) -> None:
        self._metrics = metrics
        self._is_serving = is_serving
        self._tokens = tokens
        self._page = page

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Passes a request to the application of its path; answers /healthz and unknown paths itself."""
        path = environ.get("PATH_INFO", "")
        app = self._app_of(path)
        if app is None:
            status, line = self._health() if path == "/healthz" else self._unknown_path()
            start_response(status, [_TEXT, ("X-Content-Type-Options", "nosniff")])
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [f"{line}\n".encode()]
        if self._tokens is not None and path in ("/metrics", DOCUMENT):
            app = _with_token(app, self._tokens)
        return app(environ, start_response)

    def _app_of(self, path: str) -> App | None:
        """Returns the application of a path; None if a line of text answers it."""
        if path == "/metrics":
            return self._metrics
        return self._page if self._page is not None and self._page.has(path) else None

    def _health(self) -> tuple[str, str]:
        """Returns the status and the line that answer /healthz."""
        if self._is_serving():
            return "200 OK", "SERVING"
        line = "NOT_SERVING: it starts, drains, is stuck, or has no dataset to serve; its log says which"
        return "503 Service Unavailable", line

    def _unknown_path(self) -> tuple[str, str]:
        """Returns the status and the line that answer a path that is not here."""
        line = "here are /metrics, for Prometheus, /healthz" + ("" if self._page is None else ", /status")
        return "404 Not Found", line


def _with_token(app: App, tokens: TokenFile) -> App:
    """Returns an application that answers only clients with a token for METRICS."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        header = environ.get("HTTP_AUTHORIZATION")
        try:
            tokens.grant_of(header).check_method(METRICS)
        except ServiceError as error:
            is_unknown = error.reason == pb.ERROR_REASON_UNAUTHENTICATED
            status = "401 Unauthorized" if is_unknown else "403 Forbidden"
            start_response(status, [_TEXT, ("WWW-Authenticate", "Bearer")])
            return [f"{error.message if header else _NO_TOKEN}\n".encode()]
        return app(environ, start_response)

    return answer
