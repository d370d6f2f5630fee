"""The status page, if this installation has it.

Owns what the metrics' port asks of the page. Leaves the page to the shelf (`packhorse.analysis`), the facts of a
process to `watching.own_status`, and who may read the page to `metrics_paths`.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from packhorse.server.watching.own_status import ProcessStatus
from packhorse.shelf import from_shelf

_LOG = logging.getLogger(__name__)


class Page(Protocol):
    """The status page, as a WSGI application."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers a path of the page."""
        ...

    def has(self, path: str) -> bool:
        """Returns whether the page has this path."""
        ...


def open_page(ask: Callable[[], Sequence[ProcessStatus]], data_root: Path) -> Page | None:
    """Returns the status page; None, and a line in the log, if this installation lacks it.

    Args:
        ask: returns the facts of every process that serves; those of the first process alone have datasets.
        data_root: the folder of the datasets.
    """
    try:
        page: Page = from_shelf("status_page")(ask, data_root)
    except ImportError as error:
        _LOG.warning("no status page is served: %s", error)
        return None
    return page
