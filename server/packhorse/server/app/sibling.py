"""One of several processes of a server: its settings, what it shares with the others, and its answers to the parent.

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

from packhorse.server.app.config import ServeConfig
from packhorse.server.datasets.run_progress import RunProgress
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.own_status import OwnStatus

_LOG = logging.getLogger(__name__)

REACHED, OPEN_STREAMS = "reached", "streams"
"""Names of the files in which all processes note how far runs have come, and how many streams they have open."""

METRICS, STATUS, STATUS_WITHOUT_DATASETS, SERVING = "metrics", "status", "status without datasets", "serving"
"""The questions of the parent: for all metrics, the status page, the status page without datasets, and health."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What one process of several needs to serve."""

    config: ServeConfig
    """Options of the whole server, with the real port."""
    slot: int
    """Number of the process, in [0, config.processes). The replacement of a process that died has its number."""
    folder: Path
    """Folder with the files that all processes share. The parent removes it at its end."""

    def stream_limit(self) -> StreamLimit:
        """Returns the limit of streams of all processes together."""
        return StreamLimit(self.config.max_streams, self.folder / OPEN_STREAMS, self.slot)

    def reached(self) -> RunProgress:
        """Returns the table of how far runs have come, over all processes."""
        return RunProgress(self.folder / REACHED, self.slot)


class Sibling:
    """What one of several processes shares with the others, and its connection to the parent.

    Args:
        settings: of this process.
        parent: the connection to the parent.

    Attributes:
        num_processes: how many processes the server has.
        limit: the limit of streams of all processes together.
        reached: how far runs have come, over all processes.
        is_orphan: whether the parent ended first, so that this process has to remove the shared folder.
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
        """Tells the parent that this process serves these datasets, and starts a thread that answers its questions."""
        self._parent.send(list(datasets))
        answers: dict[str, Callable[[], Any]] = {
            METRICS: lambda: list(registry.collect()),
            STATUS: status.collect,
            STATUS_WITHOUT_DATASETS: lambda: status.collect(with_datasets=False),
            SERVING: is_serving,
        }
        threading.Thread(target=self._answer, args=(answers,), name="parent", daemon=True).start()

    def _answer(self, answers: dict[str, Callable[[], Any]]) -> None:
        """Answers the parent until the parent ends; then drains this process, as after SIGTERM."""
        try:
            while True:
                number, question = self._parent.recv()
                self._parent.send((number, _tried(answers[question])))
        except (EOFError, OSError):
            _LOG.warning("the parent process is gone; draining")
            self.is_orphan = True
            os.kill(os.getpid(), signal.SIGTERM)


def _tried(answer: Callable[[], Any]) -> Any:
    """Returns an answer to the parent; None if it fails, because `_answer` takes an OSError for the parent's end."""
    try:
        return answer()
    except Exception:
        _LOG.exception("this process cannot tell its parent what it does")
        return None
