"""Where a run is: what the next iteration begins with, and what the last batch was.

Owns the state of a dataset in each of its processes, and the order of epochs; leaves what a cursor means to
`streams/cursor`. A persistent dataloader worker holds a copy of the dataset from when it was started: what the main
process chooses reaches it through a block of shared memory, and that an epoch has ended comes back through it.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from packhorse.client.streams.cursor import Resume

_DIGEST_BYTES = 16 << 10  # a digest names every range that is skipped
_CHOICE, _ITERATION, _ENDED = 4, 5, 6


class Progress:
    """Where a run is, seen by the main process and by its workers.

    The main process chooses where iterations begin. Choices and iterations are numbered, so that a batch or a worker's
    message of an earlier one is recognised as such.
    """

    def __init__(self, resume: Resume) -> None:
        self._numbers = torch.zeros(7, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._digest = torch.zeros(_DIGEST_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._own: Resume | None = None  # what a StatefulDataLoader gave to this worker alone
        self._last: tuple[int, Mapping[str, Any]] | None = None  # of which choice, and the state after its last batch
        self.choose(resume)

    @property
    def next(self) -> Resume:
        """Where the next iteration of this process begins."""
        return self._own or self._load()

    @property
    def is_own(self) -> bool:
        """Whether a StatefulDataLoader told this worker alone where to begin."""
        return self._own is not None

    @property
    def choice(self) -> int:
        """Number of the last choice."""
        return int(self._numbers[_CHOICE])

    @property
    def iteration(self) -> int:
        """Number of the last iteration that was begun or chosen."""
        return int(self._numbers[_ITERATION])

    @property
    def has_ended(self) -> bool:
        """Whether workers have come to the end of the last iteration."""
        return int(self._numbers[_ENDED]) == self.iteration

    def choose(self, resume: Resume) -> None:
        """Chooses where the next iteration begins; in the main process."""
        self._store(resume)
        self._numbers[_CHOICE] += 1
        self.begin()

    def begin(self) -> None:
        """Begins again what was chosen, whether or not workers have come to its end; in the main process."""
        self._numbers[_ITERATION] += 1

    def take(self) -> Resume:
        """Returns where this iteration begins; what was given to this worker alone counts once."""
        resume, self._own = self.next, None
        return resume

    def give_to_worker(self, resume: Resume, worker: int) -> None:
        """Keeps what a StatefulDataLoader told this worker.

        The main process learns of it from worker 0, since its StatefulDataLoader sent the state unread: workers that
        are replaced at an epoch's end begin there too.
        """
        self._own, self._last = resume, None
        if worker == 0 and resume.epoch >= self._load().epoch:
            self._store(resume)

    def record(self, choice: int, state: Mapping[str, Any]) -> None:
        """Keeps the state after the last batch of a choice."""
        self._last = choice, state

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The state after the last batch; None before the first since something was chosen."""
        return self._last[1] if self._last is not None and self._last[0] == self.choice else None

    def mark_ended(self, iteration: int) -> None:
        """Notes that workers came to an iteration's end; one worker says so for all."""
        self._numbers[_ENDED] = iteration

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
        is_done = epoch < current.epoch or (epoch == current.epoch and self.has_ended)
        if current.is_resumed and is_done:
            raise ValueError(
                f"epoch {epoch} is done: training was resumed from a cursor and goes on in epoch {current.epoch}. Loop "
                "with `for epoch in loader.epochs(num_epochs)`, which begins there; to train on an epoch again, load "
                "an earlier cursor or make a new loader"
            )
        self.choose(current if epoch == current.epoch else current.at_epoch(epoch))

    def finish(self, choice: int, digest: str = "") -> None:
        """Chooses the next epoch, unless something else was chosen since; whoever sees an epoch's end says so.

        Args:
            choice: what `choice` was when the epoch began.
            digest: of the dataset, which later epochs must have too; empty where it is not known.
        """
        if self.choice == choice:
            current = self._load()
            self.choose(replace(current.at_epoch(current.epoch + 1), digest=digest or current.digest))

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
