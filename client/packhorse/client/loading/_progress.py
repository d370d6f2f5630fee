"""A run's progress: where the next iteration begins, and the state after the last batch.

Owns the one state of a dataset in each of its processes, and the order of epochs. Leaves a state's form to
`streams/cursor`. A persistent dataloader worker holds a copy of the dataset from when it was started: what the main
process chooses reaches it through a block of shared memory, and that an epoch has ended comes back through it.
"""

import atexit
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch.utils.data import get_worker_info

from packhorse.client.errors import DigestMismatchError
from packhorse.client.streams.cursor import Facts, Resume, State, as_worker_state, is_of_worker, topology_facts
from packhorse.topology import Topology
from packhorse.wire import own_digest

_Batch = TypeVar("_Batch")

_DIGEST_BYTES = 16 << 10  # a digest names every range that is skipped
_NUMBERS = 8
_CHOICE, _ITERATION, _ENDED, _EXITING = 4, 5, 6, 7
_BOUND_BYTES = 1 << 10
_MOST_WORKERS = 1024


class Progress:
    """Where a run is, seen by the main process and by its workers.

    The main process chooses where iterations begin. Choices and iterations are numbered, so that a batch or a worker's
    message of an earlier one is recognised as such.
    """

    def __init__(self, epoch: int, seed: int, topology: Topology) -> None:
        self._seed = seed
        self._topology = topology
        sizes = [8 * _NUMBERS, 8 * _MOST_WORKERS, _DIGEST_BYTES, _BOUND_BYTES]
        shared = torch.zeros(sum(sizes), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        numbers, seen, self._digest, self._bound = shared.split(sizes)
        self._numbers, self._seen = numbers.view(torch.int64), seen.view(torch.int64)
        self._own: Resume | None = None  # what a StatefulDataLoader gave only to this worker
        self._last: tuple[int, Mapping[str, Any]] | None = None  # of which choice, and the state after its last batch
        self._iterations = 0  # in this process; only the last one goes on
        self._pid = os.getpid()
        self.choose(Resume(epoch=epoch))
        _OF_MAIN_PROCESS.add(self)

    @property
    def is_exiting(self) -> bool:
        """Whether the main process ends; seen by workers."""
        return bool(self._numbers[_EXITING])

    def exit(self) -> None:
        """Says that this process ends, if it is the one that made this."""
        if os.getpid() == self._pid:
            self._numbers[_EXITING] = 1

    @property
    def next(self) -> Resume:
        """Where the next iteration of this process begins."""
        return self._own or self._load()

    @property
    def choice(self) -> int:
        """Number of the last choice."""
        return int(self._numbers[_CHOICE])

    @property
    def facts(self) -> Facts:
        """Facts of the run's topology, as states hold them."""
        return topology_facts(self._topology)

    def choose(self, resume: Resume) -> None:
        """Chooses where the next iteration begins; in the main process."""
        self._store(resume)
        self._numbers[_CHOICE] += 1
        self.begin()

    def begin(self) -> None:
        """Begins again what was chosen, whether or not workers have come to its end; in the main process."""
        self._numbers[_ITERATION] += 1

    def take(self, *, needs_position_of_worker: bool) -> Resume:
        """Returns where this iteration begins; what was given only to this worker counts once.

        Args:
            needs_position_of_worker: whether each of several workers has a position of its own.

        Raises:
            ValueError: each worker has its own position, and only one is known.
        """
        resume, own = self.next, self._own
        if needs_position_of_worker and own is None and resume.position:
            raise ValueError(
                f"position {resume.position} is one worker's in mode 'independent', and here are "
                f"{worker_of_process()[1]}; resume with as many workers as saved it (num_workers=1), or train with "
                "mode 'partition'"
            )
        self._own = None
        return resume

    @property
    def bound(self) -> str:
        """Digest of the dataset that all processes of this run read; empty before anything answered."""
        return self._bound.numpy().tobytes().rstrip(b"\0").decode()

    def bind(self, digest: str) -> None:
        """Binds all processes to the dataset of a digest, unless they are bound already."""
        data = own_digest(digest).encode()
        if not self.bound and len(data) <= _BOUND_BYTES:
            self._bound.copy_(torch.frombuffer(bytearray(data.ljust(_BOUND_BYTES, b"\0")), dtype=torch.uint8))

    def agree(self, dataset: str, digest: str) -> None:
        """Compares what answered this process with what answered the others of its loader, and binds all to it.

        Each writes down its own before it looks at the others: of two that open at once, one sees the other.

        Raises:
            DigestMismatchError: another dataset of the same name answered another worker.
        """
        worker, _ = worker_of_process()
        number = int.from_bytes(hashlib.sha256(own_digest(digest).encode()).digest()[:7]) + 1
        self._seen[worker % _MOST_WORKERS] = number
        self.bind(digest)
        others = self._seen[self._seen != 0]
        if bool((others != number).any()):
            raise DigestMismatchError(
                f"the workers of one loader got different datasets named {dataset!r}, this one digest "
                f"{own_digest(digest)}: replicas serve different data under one name, or it was replaced just now; "
                "serve the same everywhere, and begin again"
            )

    def read(self, state: Mapping[str, Any]) -> Resume:
        """Reads a state of this run; see `Resume.from_state`."""
        return Resume.from_state(state, seed=self._seed, topology=self._topology)

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues after a state; in a worker of a StatefulDataLoader, only for that worker."""
        resume = self.read(state)
        info = get_worker_info()
        if info is None:
            self._bound.zero_()  # the cursor says which dataset it is
            self._seen.zero_()
            self.choose(replace(resume, steps_ahead=None))  # workers, if any, are new ones
            return
        saved = state["num_workers"] if is_of_worker(state) else info.num_workers
        if saved != info.num_workers:
            raise ValueError(
                f"the loader's state was saved with {saved} workers, now there are {info.num_workers}; give the state "
                "to the dataset, dataset.load_state_dict(state), or load it into a PackedStatefulDataLoader "
                "(packhorse.trainers.torchdata), which do with any"
            )
        self._own, self._last = resume, None
        # The main process's StatefulDataLoader sent the state unread. It learns of it from worker 0: workers that are
        # replaced at an epoch's end begin there too.
        if info.id == 0 and resume.epoch >= self._load().epoch:
            self._store(resume)

    def state(self) -> State:
        """Returns the state after this process's last batch, or where its next iteration begins."""
        if self._last is not None and self._last[0] == self.choice:
            return dict(self._last[1])
        resume, (worker, num_workers) = self.next, worker_of_process()
        steps_ahead = worker if resume.steps_ahead is None else resume.steps_ahead
        cursor = resume.cursor_at(
            resume.position, resume.first_step, digest=resume.digest, seed=self._seed, facts=self.facts
        )
        return as_worker_state(cursor, steps_ahead, num_workers, self.facts)

    def record(self, choice: int, state: Mapping[str, Any]) -> None:
        """Keeps the state after the last batch of a choice."""
        self._last = choice, state

    def follow(self, steps: Iterator[tuple[State, _Batch | None]]) -> Iterator[_Batch]:
        """Yields the batches of an iteration, and keeps the state after each; the last state comes without a batch.

        Raises:
            ValueError: workers have gone through the epoch already, and nothing says which one comes next.
        """
        info = get_worker_info()
        self._iterations += 1
        mine = self._iterations
        choice, iteration = self.choice, int(self._numbers[_ITERATION])
        is_first = info is None or info.id == 0
        if is_first and self._own is None and self._has_ended:
            raise ValueError(
                f"epoch {self.next.epoch} is finished, and the next epoch is not chosen; loop with "
                "`for epoch in dataset.epochs(num_epochs)`, or call dataset.set_epoch before you iterate the "
                "DataLoader again, with the same epoch for the same batches, as in validation"
            )
        state: State = {}
        num_batches = 0
        for state, batch in steps:
            if mine != self._iterations:
                raise RuntimeError(
                    "this iteration was ended by a later one over the same dataset, which has one state; make a "
                    "dataset for each iterator"
                )
            self.record(choice, state)
            if batch is not None:
                num_batches += 1
                yield batch
        if info is None:
            self.finish(choice, state["digest"])
        elif is_first and num_batches:
            self._numbers[_ENDED] = iteration  # one worker says so for all

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the epochs that are left, each chosen until the next; see `PackedDataset.epochs`."""
        if 0 < num_epochs <= (current := self._load()).epoch:
            done = (
                f"epochs({num_epochs}) goes up to epoch {num_epochs - 1}, and epoch {current.epoch} is the next; "
                f"epochs({current.epoch + 1}) goes through it"
            )
            if not current.is_resumed:
                raise ValueError(f"{done}, and set_epoch begins any epoch again")
            warnings.warn(f"{done}: the cursor's training is complete, and nothing is left of it", stacklevel=3)
        while (epoch := self._load().epoch) < num_epochs:
            self.choose(self._load())
            choice = self.choice
            yield epoch
            if self.choice == choice:  # else the loop's body chose what comes next, or saw the epoch end
                self.finish(choice)

    def set_epoch(self, epoch: int) -> None:
        """Chooses an epoch; see `PackedDataset.set_epoch`."""
        current = self._load()
        is_done = epoch < current.epoch or (epoch == current.epoch and self._has_ended)
        if current.is_resumed and is_done:
            raise ValueError(
                f"epoch {epoch} is finished: training was resumed from a cursor and continues in epoch "
                f"{current.epoch}. Loop "
                "with `for epoch in loader.epochs(num_epochs)`, which begins there; to train on an epoch again, load "
                "an earlier cursor or make a new loader"
            )
        self.choose(current if epoch == current.epoch else current.at_epoch(epoch))

    def finish(self, choice: int, digest: str = "") -> None:
        """Chooses the next epoch, unless something else was chosen since; whoever sees an epoch's end says so.

        Args:
            choice: what `choice` was when the epoch began.
            digest: of the dataset, which later epochs must have too; empty if it is not known.
        """
        if self.choice == choice:
            current = self._load()
            self.choose(replace(current.at_epoch(current.epoch + 1), digest=digest or current.digest))

    @property
    def _has_ended(self) -> bool:
        """Whether workers have come to the end of the last iteration."""
        return bool(self._numbers[_ENDED] == self._numbers[_ITERATION])

    def _load(self) -> Resume:
        """What all processes see."""
        epoch, position, first_step, is_resumed = self._numbers[:_CHOICE].tolist()
        digest = self._digest.numpy().tobytes().rstrip(b"\0").decode()
        return Resume(epoch=epoch, position=position, first_step=first_step, digest=digest, is_resumed=bool(is_resumed))

    def _store(self, resume: Resume) -> None:
        digest = resume.digest.encode().ljust(_DIGEST_BYTES, b"\0")
        if len(digest) > _DIGEST_BYTES:
            length = len(resume.digest)
            raise ValueError(f"the digest is too long ({length} characters); pass a batch's `cursor` unchanged")
        numbers = [resume.epoch, resume.position, resume.first_step, resume.is_resumed]
        self._numbers[:_CHOICE] = torch.tensor(numbers, dtype=torch.int64)
        self._digest.copy_(torch.frombuffer(bytearray(digest), dtype=torch.uint8))


_OF_MAIN_PROCESS: "WeakSet[Progress]" = WeakSet()


@atexit.register
def _tell_workers_to_end() -> None:
    """Lets SIGTERM end workers, which the end of the main process sends to those that are left."""
    for progress in _OF_MAIN_PROCESS:
        progress.exit()


def worker_of_process() -> tuple[int, int]:
    """(worker, number of workers) of this process; (0, 1) where it is no dataloader worker."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)
