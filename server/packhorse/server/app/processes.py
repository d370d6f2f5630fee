"""A server of several processes, for more streams than one process can feed: each listens on the same port.

Owns the parent, which serves no requests itself: it starts the processes, replaces those that die, passes signals on,
and shows the metrics and the status page of all as one. Leaves the start and end of each process to `child`, and the
settings that a process gets and its answers to the parent to `sibling`.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, repeat
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import mark_process_dead

from packhorse.parameters import parameter
from packhorse.server.access.bearer_tokens import TokenFile
from packhorse.server.access.tls import Certificates
from packhorse.server.app.config import OVERDUE_SECONDS, ServeConfig, split_address
from packhorse.server.app.metrics_port import listen_for_metrics
from packhorse.server.app.sibling import (
    METRICS,
    OPEN_STREAMS,
    REACHED,
    SERVING,
    STATUS,
    STATUS_WITHOUT_DATASETS,
    ProcessSettings,
)
from packhorse.server.app.status_page import open_page
from packhorse.server.datasets.run_progress import make_shared_table
from packhorse.server.service.stream_limit import make_shared_limit
from packhorse.server.watching.combined_metrics import CombinedMetrics
from packhorse.server.watching.own_status import ProcessStatus

_LOG = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 0.1
"""Seconds between a process's death and the start of its replacement. Each further death doubles them; while no process
serves, the replacement starts after this time in any case."""

MOST_DELAY_SECONDS = 30.0
"""Most seconds between a process's death and the start of its replacement."""

STEADY_SECONDS = 60.0
"""Lifetime in seconds after which a process that dies is replaced after FIRST_DELAY_SECONDS again."""

_ANSWER_SECONDS = 5.0
"""How long a process may take to answer."""

_HEALTH_SECONDS = 1.0
"""How long each process may take to say whether it serves: probes wait for the answer."""

_SHARED_MEMORY = "/dev/shm"
"""Folder in memory, for the files that all processes share; without it they are in a temporary folder on a disk."""


async def serve_in_processes(config: ServeConfig, *, ready: Callable[[str, str | None, list[str]], None]) -> int:
    """Serves in several processes until SIGTERM or SIGINT, as `running.serve` does in one; returns the exit status.

    SIGTERM, SIGINT and SIGHUP are passed on. A process that dies without them is replaced. `ready` is as for `serve`,
    and is called once all processes serve.

    Raises:
        ValueError: no dataset can be served.
        OSError: an address cannot be listened on.
    """
    certificates = None if config.tls_files is None else Certificates(config.tls_files)
    tokens = None if config.token_file is None else TokenFile(config.token_file)
    memory_folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="packhorse-", dir=memory_folder) as shared_path,
        _reserved(config.listen) as address,
    ):
        folder = Path(shared_path)
        make_shared_limit(folder / OPEN_STREAMS, config.processes)
        make_shared_table(folder / REACHED, config.processes)
        parent = _Parent(replace(config, listen=address, metrics_listen=None), folder)
        registry = CollectorRegistry()
        registry.register(CombinedMetrics(folder, parent.families))
        page = open_page(parent.page_parts, config.data_root) if config.status_page else None
        metrics = listen_for_metrics(config, registry, parent.is_serving, certificates, tokens, page)
        try:
            datasets = await parent.begin()
            if datasets is not None:
                ready(address, None if metrics is None else metrics.url, datasets)
            return await parent.replace_dead()
        finally:
            parent.kill()
            if metrics is not None:
                metrics.shutdown()


class _Process:
    """A process that was started, as the parent sees it: its state, its number and the connection to it."""

    def __init__(
        self, settings: ProcessSettings, handle: asyncio.subprocess.Process, connection: "Connection[Any, Any]"
    ) -> None:
        self.settings = settings
        self.handle = handle
        self.started = time.monotonic()
        self._connection = connection
        self._lock = threading.Lock()
        self._num_questions = 0

    @classmethod
    async def start(cls, settings: ProcessSettings) -> "_Process":
        """Starts a process, and sends it its settings."""
        ours, theirs = Pipe()
        with theirs:
            handle = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "packhorse.server.app.child",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                process_group=0,  # ^C in a terminal reaches only the parent, which hands it on
            )
        ours.send(settings)
        return cls(settings, handle, ours)

    async def datasets(self) -> list[str]:
        """Waits until the process serves, and returns the names of its datasets; raises the error if it failed."""
        try:
            answer: list[str] | Exception = await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError):
            answer = OSError(f"process {self.settings.slot} of the server ended before it served; the log may say why")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, question: str, seconds: float = _ANSWER_SECONDS) -> Any:
        """Returns the process's answer to one of the questions in `sibling`; None if it does not answer in time.

        Questions are numbered, so that a late answer to an earlier question is not taken for this one's.
        """
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            return None
        try:
            self._num_questions += 1
            self._connection.send((self._num_questions, question))
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
                number, answer = self._connection.recv()
                if number == self._num_questions:
                    return answer
        except (EOFError, OSError):  # the process has ended
            return None
        finally:
            self._lock.release()
        return None

    def send_signal(self, number: int) -> None:
        """Sends a signal, if the process is alive."""
        if self.handle.returncode is None:
            self.handle.send_signal(number)

    async def ended(self) -> int:
        """Waits for the process's end, and sets its count of streams to 0; returns its exit status, or −signal."""
        status = await self.handle.wait()
        mark_process_dead(self.settings.slot, str(self.settings.folder))  # type: ignore[no-untyped-call]
        self.settings.stream_limit().clear()
        with self._lock:
            self._connection.close()
        return status


class _Parent:
    """All processes of a server, with the folder that they share."""

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._processes: dict[int, _Process] = {}  # by slot, the number of a process and of its replacements
        self._serving: set[int] = set()  # slots of the processes that serve
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)

    async def begin(self) -> list[str] | None:
        """Starts all processes; returns the names of their datasets, or None if a signal came first.

        Raises:
            ValueError, OSError: one of them cannot serve.
        """
        try:
            names = await asyncio.gather(*(self._start(slot) for slot in range(self._config.processes)))
        except (ValueError, OSError):
            if self._stopping.is_set():
                return None
            raise
        return names[0]  # all serve the same data root

    async def replace_dead(self) -> int:
        """Replaces processes until a signal comes and all have ended; returns the server's exit status."""
        statuses = await asyncio.gather(*(self._keep_replaced(slot) for slot in list(self._processes)))
        return 0 if all(status in (0, -signal.SIGTERM) for status in statuses) else 1

    def families(self) -> list[list[Metric]]:
        """Returns the metrics of every process's registry."""
        return [self._processes[slot].ask(METRICS) or [] for slot in sorted(self._serving)]

    def is_serving(self) -> bool:
        """Asks the processes whether they serve, until one does."""
        return any(self._processes[slot].ask(SERVING, _HEALTH_SECONDS) for slot in sorted(self._serving))

    def page_parts(self) -> list[ProcessStatus]:
        """Returns every process's part of the status page. Only the first adds datasets, because that takes seconds."""
        questions = zip(sorted(self._serving), chain([STATUS], repeat(STATUS_WITHOUT_DATASETS)), strict=False)
        answers = [self._processes[slot].ask(question) for slot, question in questions]
        return [answer for answer in answers if answer is not None]

    def kill(self) -> None:
        """Ends the remaining processes."""
        self._pass_on(signal.SIGKILL)

    async def _start(self, slot: int) -> list[str]:
        """Starts the process of a slot, waits until it serves, and returns the names of its datasets."""
        process = await _Process.start(ProcessSettings(config=self._config, slot=slot, folder=self._folder))
        self._processes[slot] = process
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        datasets = await process.datasets()
        self._serving.add(slot)
        return datasets

    async def _keep_replaced(self, slot: int) -> int:
        """Replaces the process of a slot whenever it dies, until the server stops; returns its last exit status."""
        delay_seconds = FIRST_DELAY_SECONDS
        while True:
            process = self._processes[slot]
            status = await process.ended()
            self._serving.discard(slot)
            if self._stopping.is_set():
                return status
            if time.monotonic() - process.started >= STEADY_SECONDS:
                delay_seconds = FIRST_DELAY_SECONDS
            _LOG.error(
                "process %d of %d (pid %d) %s; starting another in %.1f s, or as soon as no other serves; "
                "it serves some seconds after its start",
                slot,
                self._config.processes,
                process.handle.pid,
                _how_it_ended(status),
                delay_seconds,
            )
            await self._wait_to_replace(delay_seconds)
            if self._stopping.is_set():
                return status
            delay_seconds = min(2 * delay_seconds, MOST_DELAY_SECONDS)
            try:
                await self._start(slot)
            except (ValueError, OSError) as error:
                if not self._stopping.is_set():
                    _LOG.error("process %d: %s", slot, error)

    async def _wait_to_replace(self, delay_seconds: float) -> None:
        """Waits before a process is replaced, but not after a signal, and only for a moment while no process serves."""
        end = time.monotonic() + delay_seconds
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(FIRST_DELAY_SECONDS, delay_seconds))
            if not self._serving or time.monotonic() >= end:
                return

    def _stop(self) -> None:
        """Passes SIGTERM to all processes: at the first they drain, at a second they end. Overdue ones are killed."""
        if not self._stopping.is_set():
            self._stopping.set()
            overdue_seconds = self._config.grace_seconds + 2 * OVERDUE_SECONDS
            asyncio.get_running_loop().call_later(overdue_seconds, self.kill)
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        """Sends the signal of this number to all processes that are alive."""
        for process in self._processes.values():
            process.send_signal(number)


@contextmanager
def _reserved(listen: str) -> Iterator[str]:
    """Reserves an address for this server's processes; yields it with its real port.

    The check with `probe` is needed because Linux would let the processes of two servers share a port.

    Raises:
        OSError: the address is in use, or nobody can listen there.
    """
    host, port = split_address("listen", listen)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reserved:
        try:
            if port:
                with socket.socket(reserved.family) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((host, port))
        except OSError:
            raise OSError(parameter("listen") + f" {listen}: the address is in use or cannot be listened on") from None
        yield f"{listen.rpartition(':')[0]}:{reserved.getsockname()[1]}"


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
