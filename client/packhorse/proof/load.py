"""A load on a server: every stream of a run at once, read by several processes with a thread for each stream.

Owns opening and reading the streams, and what each measures. Leaves figures and lines to `commands/bench`.
"""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from threading import Thread
from typing import Any

from packhorse.client import Access, BinStream, PackhorseError, RetryPolicy, connect
from packhorse.client.errors import TooManyStreamsError
from packhorse.topology import Topology

PATIENT = RetryPolicy(deadline_seconds=60)
"""The retry policy of the streams, patient enough to measure a slow server."""

NOT_ADMITTED = "it was never admitted"
"""The error of a stream that the server did not admit before the others had ended."""

START_SECONDS = 120.0
"""The longest time in which all processes must have started."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load that is put on a server."""

    target: str
    """Address of the server."""
    access: Access
    """Certificates and tokens."""
    dataset: str
    """Name of the dataset."""
    seed: int
    """Seed of the run."""
    topology: Topology
    """Shape of the run; every worker of every rank has a stream."""
    seconds: float
    """How long streams read. A stream whose epoch ends continues with the next epoch."""
    steps_per_second: float | None
    """Steps per second of each rank; None for as fast as possible."""

    @property
    def coordinates(self) -> list[tuple[int, int]]:
        """(rank, worker) of every stream."""
        shape = self.topology
        return [(rank, worker) for rank in range(shape.world_size) for worker in range(shape.workers_per_rank)]


@dataclass
class Measured:
    """The measurements of one stream."""

    first_seconds: list[float] = field(default_factory=list)
    """Time from the request to the first block, for each epoch that was opened."""
    next_seconds: list[float] = field(default_factory=list)
    """Time of waiting for each further block."""
    num_bins: int = 0
    """Bins read."""
    num_ids: int = 0
    """Sequences read."""
    num_tokens: int = 0
    """Tokens read, counted by rooms."""
    seconds: float = 0.0
    """Time from the start of the load until reading ended, for whatever reason."""
    was_refused: bool = False
    """Whether the server was full when the stream was first requested."""
    error: str = ""
    """Why the stream ended early, or read nothing; empty if all was well."""


def run_load(load: Load, num_processes: int) -> tuple[list[Measured], float]:
    """Opens all streams of a load at once, in several processes, and reads them.

    Returns:
        (The measurements of each stream, processor time of all processes in seconds).

    Raises:
        RuntimeError: a process ended without an answer.
    """
    spawning = multiprocessing.get_context("spawn")
    coordinates = load.coordinates
    num_processes = min(num_processes, len(coordinates))
    barrier = spawning.Barrier(num_processes)
    answers, processes = [], []
    for number in range(num_processes):
        receiver, sender = spawning.Pipe(duplex=False)
        process = spawning.Process(
            target=_read_some, args=(load, coordinates[number::num_processes], barrier, sender), daemon=True
        )
        process.start()
        sender.close()  # only the process has it open now, so its end ends `recv`
        answers.append(receiver)
        processes.append(process)
    measurements: list[Measured] = []
    processor_seconds = 0.0
    try:
        for answer in answers:
            some, seconds = answer.recv()
            measurements += some
            processor_seconds += seconds
    except EOFError:
        raise RuntimeError("a process of the bench ended without an answer; its error is above") from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return measurements, processor_seconds


def _read_some(load: Load, coordinates: Sequence[tuple[int, int]], barrier: Barrier, answer: Connection) -> None:
    """Reads some of the streams, each in a thread, and sends (measurements, processor time in seconds) to `answer`.

    Runs in a process of its own. The barrier makes all processes begin at once.
    """
    measurements = [Measured() for _ in coordinates]
    barrier.wait(START_SECONDS)
    processor_began, began = time.process_time(), time.perf_counter()
    threads = [
        Thread(target=_read, args=(load, rank, worker, began, measured), daemon=True)
        for (rank, worker), measured in zip(coordinates, measurements, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.send((measurements, time.process_time() - processor_began))


def _read(load: Load, rank: int, worker: int, began: float, measured: Measured) -> None:
    """Reads a stream, epoch after epoch, until the time is over or it fails; fills in `measured`."""
    options: dict[str, Any] = {"seed": load.seed, "rank": rank, "worker": worker, "topology": load.topology}
    access = {name: getattr(load.access, name) for name in load.access.given}
    num_steps = epoch = 0
    try:
        with connect(load.target, retry=PATIENT, **access) as client:
            while (opened := time.perf_counter()) < began + load.seconds:
                with client.stream_bins(load.dataset, epoch=epoch, **options) as stream:
                    num_steps = _read_epoch(load, stream, opened, began, num_steps, measured)
                epoch += 1
    except PackhorseError as error:
        measured.error = str(error)
        # The server refused until the client gave up: the error that it raises then has the last refusal as its cause.
        if not measured.num_bins and isinstance(error.__cause__, TooManyStreamsError):
            measured.was_refused = True
    except BaseException as error:
        measured.error = f"{type(error).__name__}: {error}"
        raise  # no fault of the server: the thread prints where it is
    finally:
        measured.seconds = time.perf_counter() - began


def _read_epoch(load: Load, stream: BinStream, opened: float, began: float, num_steps: int, measured: Measured) -> int:
    """Reads the stream of one epoch until its end, or until the time is over.

    The stream was requested at `opened`, and the load began at `began`. Fills in `measured`, and returns `num_steps`,
    the steps of the epochs before, plus the steps read here.
    """
    end = began + load.seconds
    # When the wait for the next block began, and the list that it goes to; the first wait has a list of its own.
    asked, waits = opened, measured.first_seconds
    for block in stream:
        now = time.perf_counter()
        if not measured.num_bins and stream.was_refused:
            measured.was_refused = True
            if now >= end:  # admitted only because the others have ended
                measured.error = NOT_ADMITTED
                break
        waits.append(now - asked)
        measured.num_bins += len(block)
        measured.num_ids += len(block.ids)
        measured.num_tokens += int(block.lengths.sum())
        num_steps += len(block.steps)
        if load.steps_per_second:
            # A rank's workers take its steps in turn, so in the time of one step here the rank trains on one of each.
            train_until = began + num_steps * load.topology.workers_per_rank / load.steps_per_second
            time.sleep(max(0.0, min(train_until, end) - now))
        asked, waits = time.perf_counter(), measured.next_seconds
        if asked >= end:
            break
    return num_steps
