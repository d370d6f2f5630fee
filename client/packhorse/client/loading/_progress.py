"""A run's progress: where the next iteration begins, and the state after the last batch.

Owns a dataset's state in the main process and in each worker, the order of epochs, and telling workers that the main
process ends. A persistent dataloader worker has a copy of the dataset, made when the worker was started. So the main
process writes its choices to a block of shared memory (`workers/shared_progress`), and workers write there at an
epoch's end. Leaves the form of a state to `streams/cursor`, and that all workers read the same dataset to
`workers/digests`.
"""

import atexit
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from torch.utils.data import get_worker_info

from packhorse.client.loading.workers.current import current_worker
from packhorse.client.loading.workers.digests import WorkerDigests
from packhorse.client.loading.workers.shared_progress import SharedProgress
from packhorse.client.streams.cursor import Facts, Resume, State, as_worker_state, is_of_worker, topology_facts
from packhorse.topology import Topology

_Batch = TypeVar("_Batch")


class Step(NamedTuple, Generic[_Batch]):
    """One step of an iteration."""

    state: State
    """The state after the step's batch; at the epoch's end the last state."""
    batch: _Batch | None
    """The batch; None at the epoch's end."""


class _Recorded(NamedTuple):
    """The state after the last batch of a choice."""

    choice: int
    """The choice's number."""
    state: Mapping[str, Any]
    """The state, as `Progress.state` returns it."""


class Progress:
    """Where a run is, shared by the main process and its workers.

    The main process chooses where iterations begin (a choice: an epoch and a position), and begins iterations; several
    may follow one choice. Both are numbered, so that what comes late from an earlier one is recognised and ignored.
    """

    def __init__(self, epoch: int, seed: int, topology: Topology) -> None:
        self._seed = seed
        self._topology = topology
        self._shared = SharedProgress()
        self.digests = WorkerDigests(self._shared)
        self._own: Resume | None = None  # where only this worker begins, as a StatefulDataLoader's state says
        self._last: _Recorded | None = None  # this process's last batch; None before the first
        self._num_iterations = 0  # of this process; only the last one may continue
        self._main_pid = os.getpid()  # in a worker's copy, too
        self.choose(Resume(epoch=epoch))
        _OF_MAIN_PROCESS.add(self)

    @property
    def is_exiting(self) -> bool:
        """Whether the main process ends; workers read it."""
        return self._shared.is_exiting

    def exit(self) -> None:
        """Tells workers that the main process ends; does nothing in other processes."""
        if os.getpid() == self._main_pid:
            self._shared.exit()

    @property
    def next(self) -> Resume:
        """Where the next iteration of this process begins."""
        return self._shared.resume if self._own is None else self._own

    @property
    def choice(self) -> int:
        """Number of the last choice, which changes with each."""
        return self._shared.choice

    @property
    def facts(self) -> Facts:
        """The run's topology, in the form that states hold."""
        return topology_facts(self._topology)

    def choose(self, resume: Resume) -> None:
        """Chooses where the next iteration begins; only in the main process."""
        self._shared.resume = resume
        self._shared.count_choice()
        self.restart()

    def restart(self) -> None:
        """Begins another iteration of the last choice, even if workers have reached its end; in the main process."""
        self._shared.count_iteration()

    def start_iteration(self, *, needs_position_of_worker: bool) -> Resume:
        """Returns where this iteration begins. A state that was loaded only for this worker is used for one iteration.

        Args:
            needs_position_of_worker: whether there are several workers, each with its own position (INDEPENDENT).

        Raises:
            ValueError: each worker needs its own position, and only one position is known.
        """
        resume, own = self.next, self._own
        if needs_position_of_worker and own is None and resume.position:
            raise ValueError(
                f"position {resume.position} is one worker's in mode 'independent', and here are "
                f"{current_worker().num_workers}; resume with as many workers as saved it (num_workers=1), or train "
                "with mode 'partition'"
            )
        self._own = None
        return resume

    def read(self, state: Mapping[str, Any]) -> Resume:
        """Reads a state of this run; see `Resume.from_state`."""
        return Resume.from_state(state, seed=self._seed, topology=self._topology)

    def load(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue after a state; in a worker of a StatefulDataLoader, only that worker's.

        Raises:
            ValueError: the state is not one of this run; or, in a worker, was saved with another number of workers.
        """
        resume = self.read(state)
        info = get_worker_info()
        if info is None:
            self.digests.forget()  # from now on the state's digest decides
            self.choose(replace(resume, steps_ahead=None))  # steps_ahead is one worker's, and this is for all
            return
        saved = state["num_workers"] if is_of_worker(state) else info.num_workers
        if saved != info.num_workers:
            raise ValueError(
                f"the loader's state was saved with {saved} workers, now there are {info.num_workers}; give the state "
                "to the dataset, dataset.load_state_dict(state), or load it into a PackedStatefulDataLoader "
                "(packhorse.trainers.torchdata), which do with any"
            )
        self._own, self._last = resume, None
        # In the main process nobody has read the state: the StatefulDataLoader only passed it on. So worker 0 writes it
        # to the shared memory, where the main process finds it, and workers that replace these at an epoch's end.
        if info.id == 0 and resume.epoch >= self._shared.resume.epoch:
            self._shared.resume = resume

    def state(self) -> State:
        """Returns the state after this process's last batch; before the first batch, where it will begin."""
        if self._last is not None and self._last.choice == self.choice:
            return dict(self._last.state)
        resume, worker = self.next, current_worker()
        steps_ahead = worker.number if resume.steps_ahead is None else resume.steps_ahead
        cursor = resume.cursor_at(
            resume.position, resume.first_step, digest=resume.digest, seed=self._seed, facts=self.facts
        )
        return as_worker_state(cursor, steps_ahead, worker.num_workers, self.facts)

    def record(self, choice: int, state: Mapping[str, Any]) -> None:
        """Records the state after the last batch, and the number of the choice whose batch it is."""
        self._last = _Recorded(choice, state)

    def follow(self, steps: Iterator[Step[_Batch]]) -> Iterator[_Batch]:
        """Yields the batches of an iteration, and records the state after each.

        Args:
            steps: the iteration's steps; at the end of the epoch a last one without a batch.

        Raises:
            ValueError: workers have gone through the epoch already, and the next one is not chosen.
            RuntimeError: a later iteration of the same dataset has begun in this process.
        """
        info = get_worker_info()
        self._num_iterations += 1
        number = self._num_iterations
        choice, iteration = self.choice, self._shared.iteration
        # One process speaks for a loader: the only worker, worker 0, or this process if there are no workers.
        is_speaker = info is None or info.id == 0
        # A state of its own says where this worker begins, so it needs no choice.
        if is_speaker and self._own is None and self._shared.has_ended:
            raise ValueError(
                f"epoch {self.next.epoch} is finished, and the next epoch is not chosen; loop with "
                "`for epoch in dataset.epochs(num_epochs)`, or call dataset.set_epoch before you iterate the "
                "DataLoader again, with the same epoch for the same batches, as in validation"
            )
        digest = ""  # of the dataset; empty until the first step
        num_batches = 0
        for step in steps:
            if number != self._num_iterations:
                raise RuntimeError(
                    "this iteration was ended by a later one over the same dataset, which has one state; make a "
                    "dataset for each iterator"
                )
            self.record(choice, step.state)
            digest = step.state["digest"]
            if step.batch is not None:
                num_batches += 1
                yield step.batch
        if info is None:
            self.finish(choice, digest)
        elif is_speaker and num_batches:  # an iteration without a batch, as after a cursor at the end, does not count
            self._shared.end(iteration)  # the next iteration needs a choice (above), and `set_epoch` knows it is done

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the remaining epochs, and chooses each before it yields it; see `PackedDataset.epochs`."""
        if 0 < num_epochs <= (current := self._shared.resume).epoch:
            done = (
                f"epochs({num_epochs}) goes up to epoch {num_epochs - 1}, and epoch {current.epoch} is the next; "
                f"epochs({current.epoch + 1}) goes through it"
            )
            if not current.is_resumed:
                raise ValueError(f"{done}, and set_epoch begins any epoch again")
            # This is a generator, so its caller is the user's loop, at whose line the warning is shown.
            warnings.warn(f"{done}: the cursor's training is complete, and nothing is left of it", stacklevel=2)
        while (epoch := self._shared.resume.epoch) < num_epochs:
            self.choose(self._shared.resume)  # the same again, under a number of its own
            choice = self.choice
            yield epoch
            if self.choice == choice:  # else the loop's body chose an epoch, or reached the end of this one
                self.finish(choice)

    def set_epoch(self, epoch: int) -> None:
        """Chooses an epoch; see `PackedDataset.set_epoch`."""
        current = self._shared.resume
        is_done = epoch < current.epoch or (epoch == current.epoch and self._shared.has_ended)
        if current.is_resumed and is_done:
            raise ValueError(
                f"epoch {epoch} is finished: training was resumed from a cursor and continues in epoch "
                f"{current.epoch}. Loop with `for epoch in loader.epochs(num_epochs)`, which begins there; to train on "
                "an epoch again, load an earlier cursor or make a new loader"
            )
        self.choose(current if epoch == current.epoch else current.at_epoch(epoch))

    def finish(self, choice: int, digest: str = "") -> None:
        """Chooses the next epoch, unless there was another choice since. Called by every part that sees an epoch's end.

        Args:
            choice: the number of the choice with which the epoch began.
            digest: the dataset's digest, which later epochs must have too; empty if it is not known.
        """
        if self.choice == choice:
            current = self._shared.resume
            self.choose(replace(current.at_epoch(current.epoch + 1), digest=digest or current.digest))


_OF_MAIN_PROCESS: "WeakSet[Progress]" = WeakSet()
"""The Progress of every dataset of this process, which `_tell_workers_to_end` tells of its end."""


@atexit.register
def _tell_workers_to_end() -> None:
    """Lets workers obey SIGTERM, which multiprocessing sends to the remaining workers when the main process ends."""
    for progress in _OF_MAIN_PROCESS:
        progress.exit()
