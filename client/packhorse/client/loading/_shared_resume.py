"""Where the next iteration begins, and which epoch follows: a `Resume` that workers see change.

A persistent dataloader worker holds a copy of the dataset from when it was started; what the main process chooses
reaches it through a block of shared memory, and that an epoch's end was reached comes back through it. Owns that block
and the order of epochs; leaves what a Resume means to `cursor`.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch

from packhorse.client.streams.cursor import Resume

_DIGEST_BYTES = 16 << 10  # a digest names every range that is skipped
_CHOICE, _ITERATION, _GONE_THROUGH = 6, 7, 8


class SharedResume:
    """One Resume in shared memory.

    The main process chooses it between iterations. Choices and iterations are numbered, so that a batch or a worker's
    message of an earlier one is recognised as such.
    """

    def __init__(self, resume: Resume) -> None:
        self._numbers = torch.zeros(9, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._digest = torch.zeros(_DIGEST_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self.choose(resume)

    def load(self) -> Resume:
        """Returns what was stored last."""
        epoch, start_position, position, first_step, first_turn, is_resumed = self._numbers[:_CHOICE].tolist()
        digest = self._digest.numpy().tobytes().rstrip(b"\0").decode()
        return Resume(
            epoch=epoch,
            start_position=start_position,
            position=position,
            first_step=first_step,
            first_turn=first_turn,
            digest=digest,
            is_resumed=bool(is_resumed),
        )

    @property
    def choice(self) -> int:
        """Number of the last choice."""
        return int(self._numbers[_CHOICE])

    @property
    def iteration(self) -> int:
        """Number of the last iteration that was begun or chosen."""
        return int(self._numbers[_ITERATION])

    @property
    def is_gone_through(self) -> bool:
        """Whether workers have come to the end of the last iteration."""
        return int(self._numbers[_GONE_THROUGH]) == self.iteration

    def choose(self, resume: Resume) -> None:
        """Chooses where the next iteration begins; in the main process."""
        self.store(resume)
        self._numbers[_CHOICE] += 1
        self.begin()

    def begin(self) -> None:
        """Begins anew what was chosen, whether or not workers have come to its end; in the main process."""
        self._numbers[_ITERATION] += 1

    def store(self, resume: Resume) -> None:
        """Replaces the Resume without choosing anew; in a worker whose StatefulDataLoader told it where to go on."""
        digest = resume.digest.encode().ljust(_DIGEST_BYTES, b"\0")
        if len(digest) > _DIGEST_BYTES:
            length = len(resume.digest)
            raise ValueError(f"the digest is too long ({length} characters); pass a batch's `cursor` unchanged")
        where = [resume.epoch, resume.start_position, resume.position, resume.first_step, resume.first_turn]
        self._numbers[:_CHOICE] = torch.tensor([*where, resume.is_resumed], dtype=torch.int64)
        self._digest.copy_(torch.frombuffer(bytearray(digest), dtype=torch.uint8))

    def mark_gone_through(self, iteration: int) -> None:
        """Notes that workers came to an iteration's end; one worker says so for all."""
        self._numbers[_GONE_THROUGH] = iteration

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the epochs that are left, each chosen until the next; see `PackedDataset.epochs`."""
        if 0 < num_epochs <= (current := self.load()).epoch:
            done = (
                f"epochs({num_epochs}) goes up to epoch {num_epochs - 1}, and epoch {current.epoch} is the next; "
                f"epochs({current.epoch + 1}) goes through it"
            )
            if not current.is_resumed:
                raise ValueError(f"{done}, and set_epoch begins any epoch again")
            warnings.warn(f"{done}: the cursor's training is complete, and nothing is left of it", stacklevel=3)
        while (epoch := self.load().epoch) < num_epochs:
            self.choose(self.load())
            choice = self.choice
            yield epoch
            if self.choice == choice:  # else the loop's body chose what comes next, or saw the epoch end
                self.finish(choice)

    def set_epoch(self, epoch: int) -> None:
        """Chooses an epoch; see `PackedDataset.set_epoch`."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        current = self.load()
        is_done = epoch < current.epoch or (epoch == current.epoch and self.is_gone_through)
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
            current = self.load()
            self.choose(replace(current.at_epoch(current.epoch + 1), digest=digest or current.digest))
