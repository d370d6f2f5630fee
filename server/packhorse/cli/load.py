"""Load for `packhorse bench`: many streams from several processes, and what each of them measured.

Owns the processes and what is measured; leaves options and output to the command. A process has a thread for each of
its streams, and each stream a connection of its own, as a trainer's workers have.
"""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from threading import Thread
from typing import Any

from packhorse.client import Access, PackhorseError, RetryPolicy, connect
from packhorse.client.errors import TooManyStreamsError
from packhorse.topology import Topology

PATIENT = RetryPolicy(deadline_seconds=60)
"""A server that takes longer than the bench is measured, too."""

NO_PLACE = "it was never let in"
"""What is told of a stream that was not admitted as long as the others were read."""

START_SECONDS = 120.0
"""How long the processes may take to start."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of a server."""

    target: str
    access: Access
    dataset: str
    seed: int
    topology: Topology
    """Every rank and worker of it has a stream."""
    seconds: float
    """How long streams read; one whose epoch ends goes on with the next."""
    steps_per_second: float | None
    """Of each rank; None for as fast as they come."""

    @property
    def coordinates(self) -> list[tuple[int, int]]:
        """(rank, worker) of every stream."""
        shape = self.topology
        return [(rank, worker) for rank in range(shape.world_size) for worker in range(shape.workers_per_rank)]


@dataclass
class Measured:
    """What one stream measured."""

    first_seconds: list[float] = field(default_factory=list)
    """From the request to the first block, each time that an epoch was opened."""
    next_seconds: list[float] = field(default_factory=list)
    """How long each further block was waited for."""
    num_bins: int = 0
    num_ids: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    """From the first request to the last block."""
    was_refused: bool = False
    """Whether servers had as many streams as they take when it asked."""
    error: str = ""
    """Why it ended early, or read nothing."""


def run_load(load: Load, num_processes: int) -> tuple[list[Measured], float]:
    """Opens all streams at once and reads them.

    Args:
        load: what is asked.
        num_processes: that share the streams.

    Returns:
        What each stream measured, and the seconds of a processor that all of them took together.

    Raises:
        RuntimeError: a process ended without an answer.
    """
    spawning = multiprocessing.get_context("spawn")
    coordinates = load.coordinates
    num_processes = min(num_processes, len(coordinates))
    barrier = spawning.Barrier(num_processes)
    pipes, processes = [], []
    for number in range(num_processes):
        ours, theirs = spawning.Pipe(duplex=False)
        process = spawning.Process(
            target=_read_part, args=(load, coordinates[number::num_processes], barrier, theirs), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    measured: list[Measured] = []
    processor_seconds = 0.0
    try:
        for pipe in pipes:
            part, seconds = pipe.recv()
            measured += part
            processor_seconds += seconds
    except EOFError:
        raise RuntimeError("a process of the bench ended without an answer; its error is above") from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return measured, processor_seconds


def _read_part(load: Load, coordinates: Sequence[tuple[int, int]], barrier: Barrier, answer: Connection) -> None:
    """Reads some of the streams, each in a thread, and sends what they measured."""
    measured = [Measured() for _ in coordinates]
    barrier.wait(START_SECONDS)
    used, began = time.process_time(), time.perf_counter()
    threads = [
        Thread(target=_read, args=(load, rank, worker, began, into), daemon=True)
        for (rank, worker), into in zip(coordinates, measured, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.send((measured, time.process_time() - used))


def _read(load: Load, rank: int, worker: int, began: float, measured: Measured) -> None:
    end = began + load.seconds
    options: dict[str, Any] = {"seed": load.seed, "rank": rank, "worker": worker, "topology": load.topology}
    access = {name: getattr(load.access, name) for name in load.access.given}
    num_steps = epoch = 0
    try:
        with connect(load.target, retry=PATIENT, **access) as client:
            while (opened := time.perf_counter()) < end:
                with client.stream_bins(load.dataset, epoch=epoch, **options) as stream:
                    asked, times = opened, measured.first_seconds
                    for block in stream:
                        now = time.perf_counter()
                        if not measured.num_bins and stream.was_refused:
                            measured.was_refused = True
                            if now >= end:  # the others have made room
                                measured.error = NO_PLACE
                                break
                        times.append(now - asked)
                        measured.num_bins += len(block)
                        measured.num_ids += len(block.ids)
                        measured.num_tokens += int(block.lengths.sum())
                        num_steps += len(block.steps)
                        if load.steps_per_second:
                            train_until = began + num_steps * load.topology.workers_per_rank / load.steps_per_second
                            time.sleep(max(0.0, min(train_until, end) - now))
                        asked, times = time.perf_counter(), measured.next_seconds
                        if asked >= end:
                            break
                epoch += 1
    except PackhorseError as error:
        measured.error = str(error)
        measured.was_refused |= not measured.num_bins and isinstance(error.__cause__, TooManyStreamsError)
    measured.seconds = time.perf_counter() - began
