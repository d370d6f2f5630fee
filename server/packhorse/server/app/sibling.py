"""One of several processes of a server: its settings, and its view of the others.

Leaves starting processes, and asking them, to `processes`, which is the parent.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from packhorse.server.access.config import ServeConfig
from packhorse.server.datasets.run_progress import RunProgress
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.own_status import OwnStatus

_LOG = logging.getLogger(__name__)

REACHED = "reached"
"""The file in which processes keep how far runs have come."""

METRICS, STATUS, STREAMS, SERVING = "metrics", "status", "streams", "serving"
"""What the parent asks its processes: all metrics, all of the status page, that without the datasets, and health."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What one process of several needs to serve."""

    config: ServeConfig
    """Options of the whole server, with the real port."""
    slot: int
    """Its number, in [0, config.processes). A process that replaces one that died has the same."""
    folder: Path
    """What all processes share for as long as their parent lives."""

    def stream_limit(self) -> StreamLimit:
        """Returns the limit of streams of all processes together."""
        return StreamLimit(self.config.max_streams, self.folder / "streams", self.slot)

    def reached(self) -> RunProgress:
        """Returns how far the runs have come that any process streams to."""
        return RunProgress(self.folder / REACHED, self.slot)


class Sibling:
    """A process's view of the others.

    Args:
        settings: of this process.
        parent: the connection to the parent.
    """

    def __init__(self, settings: ProcessSettings, parent: "Connection[Any, Any]") -> None:
        self.num_processes = settings.config.processes
        self.limit = settings.stream_limit()
        self.reached = settings.reached()
        self.is_orphan = False
        self._parent = parent

    def begin(
        self,
        registry: CollectorRegistry,
        status: OwnStatus,
        datasets: Sequence[str],
        is_serving: Callable[[], bool],
    ) -> None:
        """Tells the parent that this process serves these datasets, and from then on answers its questions."""
        self._parent.send(list(datasets))
        answers: dict[str, Callable[[], Any]] = {
            METRICS: lambda: list(registry.collect()),
            STATUS: status.look,
            STREAMS: lambda: status.look(with_datasets=False),
            SERVING: is_serving,
        }
        threading.Thread(target=self._answer, args=(answers,), name="parent", daemon=True).start()

    def _answer(self, answers: dict[str, Callable[[], Any]]) -> None:
        """Answers the parent until that ends; then this process drains, as after SIGTERM."""
        try:
            while True:
                number, question = self._parent.recv()
                self._parent.send((number, _tried(answers[question])))
        except (EOFError, OSError):
            _LOG.warning("the parent process is gone; draining")
            self.is_orphan = True
            os.kill(os.getpid(), signal.SIGTERM)


def _tried(answer: Callable[[], Any]) -> Any:
    """Returns an answer to the parent; None if it fails, which must not be taken for the end of the parent."""
    try:
        return answer()
    except Exception:
        _LOG.exception("this process cannot tell its parent what it does")
        return None
