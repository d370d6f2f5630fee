"""One of several processes that serve at one address, as it sees the others.

Owns what such a process learns, what it shares, and what it tells its parent; leaves serving to `running`, and who is
started when to `processes`. Run as `python -m packhorse.server.app.sibling FD`.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, values

from packhorse.server.access.config import ServeConfig
from packhorse.server.base.logs import set_up_logging
from packhorse.server.datasets.reached import Reached
from packhorse.server.lanes.stream_limit import SharedStreamLimit

REACHED = "reached"
"""The file through which processes tell how far runs have come."""

_LOG = logging.getLogger("packhorse.server.app.sibling")  # it runs as __main__


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What one process of several serves by."""

    config: ServeConfig
    """Of the whole server, with the real port."""
    slot: int
    """Its number, in [0, config.processes). One that replaces another that died has the same."""
    folder: Path
    """What all of them share for as long as their parent lives."""

    def stream_limit(self) -> SharedStreamLimit:
        """The streams that all of them may have open together."""
        return SharedStreamLimit(self.config.max_streams, self.folder / "streams", self.slot)

    def reached(self) -> Reached:
        """How far the runs have come that any of them streams to."""
        return Reached(self.folder / REACHED, self.slot)


class Sibling:
    """What `app.serve` knows of the others.

    Args:
        settings: what this process serves by.
        parent: the connection to the parent.
    """

    def __init__(self, settings: ProcessSettings, parent: "Connection[Any, Any]") -> None:
        self.num_processes = settings.config.processes
        self.limit = settings.stream_limit()
        self.reached = settings.reached()
        self.is_orphan = False
        self._parent = parent

    def begin(self, registry: CollectorRegistry, datasets: Sequence[str]) -> None:
        """Tells the parent that this process serves these datasets, and from then on its metrics when it asks."""
        self._parent.send(list(datasets))
        threading.Thread(target=self._answer, args=(registry,), name="parent", daemon=True).start()

    def _answer(self, registry: CollectorRegistry) -> None:
        """Answers the parent until that ends; then this process drains, as if it had been told to."""
        try:
            while True:
                number = self._parent.recv()
                self._parent.send((number, list(registry.collect())))
        except (EOFError, OSError):
            _LOG.warning("the parent process is gone; draining")
            self.is_orphan = True
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serves by the settings that the parent sends, and leaves without waiting for threads that are inside kernels."""
    parent: Connection[Any, Any] = Connection(int(sys.argv[1]))
    settings: ProcessSettings = parent.recv()
    set_up_logging(settings.config.log_format, settings.config.log_level)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.folder)
    # before any metric is made
    values.ValueClass = values.MultiProcessValue(lambda: settings.slot)  # type: ignore[no-untyped-call]
    from packhorse.server.app.running import serve

    sibling = Sibling(settings, parent)
    status = 0
    try:
        asyncio.run(serve(settings.config, ready=lambda *_: None, sibling=sibling))
    except (ValueError, OSError) as error:
        parent.send(error)
        status = 1
    except Exception as error:
        _LOG.exception("this process failed")
        parent.send(OSError(f"a server's process failed: {error}; its trace is in the log"))
        status = 1
    if sibling.is_orphan:
        shutil.rmtree(settings.folder, ignore_errors=True)
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
