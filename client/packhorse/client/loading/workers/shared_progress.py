"""The block of memory that a run's main process shares with its dataloader workers: `SharedProgress`.

Owns where each fact lies in the block. Leaves when a process writes them, and what follows, to `loading/_progress`.
"""

import torch

from packhorse.client.streams.cursor import Resume

_DIGEST_BYTES = 16 << 10
"""Bytes of the digest to resume with, which is long if it names many skipped ranges."""
_AGREED_BYTES = 1 << 10
"""Bytes of the digest on which all processes agreed."""
_MOST_WORKERS = 1024
"""Workers with an int64 of their own: a hash of the digest that answered the worker, 0 for none yet."""

_RESUME = slice(0, 4)
"""Indices of the int64 numbers of a Resume: epoch, position, first_step and is_resumed."""
_CHOICE, _ITERATION, _ENDED, _EXITING = 4, 5, 6, 7
"""Indices of the other int64 numbers."""
_NUM_NUMBERS = 8
"""All of these int64 numbers."""


class SharedProgress:
    """Where a run is, in memory that forked and pickled copies of this object share."""

    def __init__(self) -> None:
        sizes = [
            torch.int64.itemsize * _NUM_NUMBERS,
            torch.int64.itemsize * _MOST_WORKERS,
            _DIGEST_BYTES,
            _AGREED_BYTES,
        ]
        shared = torch.zeros(sum(sizes), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        numbers, hashes, self._resume_digest, self._agreed_digest = shared.split(sizes)
        self._numbers, self._hashes = numbers.view(torch.int64), hashes.view(torch.int64)

    @property
    def choice(self) -> int:
        """Number of the main process's last choice where iterations begin."""
        return int(self._numbers[_CHOICE])

    def count_choice(self) -> None:
        """Adds one to the number of choices."""
        self._numbers[_CHOICE] += 1

    @property
    def iteration(self) -> int:
        """Number of the last iteration that the main process began."""
        return int(self._numbers[_ITERATION])

    def count_iteration(self) -> None:
        """Adds one to the number of iterations."""
        self._numbers[_ITERATION] += 1

    @property
    def has_ended(self) -> bool:
        """Whether workers have reached the end of the last iteration. Iterations are counted from 1; 0 is no end."""
        return bool(self._numbers[_ENDED] == self._numbers[_ITERATION])

    def end(self, iteration: int) -> None:
        """Says that workers have reached the end of an iteration."""
        self._numbers[_ENDED] = iteration

    @property
    def is_exiting(self) -> bool:
        """Whether the main process ends."""
        return bool(self._numbers[_EXITING])

    def exit(self) -> None:
        """Says that the main process ends."""
        self._numbers[_EXITING] = 1

    @property
    def resume(self) -> Resume:
        """Where the next iteration begins; without `steps_ahead`, which is one worker's."""
        epoch, position, first_step, is_resumed = self._numbers[_RESUME].tolist()
        digest = _text(self._resume_digest)
        return Resume(epoch=epoch, position=position, first_step=first_step, digest=digest, is_resumed=bool(is_resumed))

    @resume.setter
    def resume(self, resume: Resume) -> None:
        if len(resume.digest.encode()) > _DIGEST_BYTES:
            length = len(resume.digest)
            raise ValueError(f"the digest is too long ({length} characters); pass a batch's `cursor` unchanged")
        numbers = [resume.epoch, resume.position, resume.first_step, resume.is_resumed]
        self._numbers[_RESUME] = torch.tensor(numbers, dtype=torch.int64)
        _write_text(self._resume_digest, resume.digest)

    @property
    def agreed_digest(self) -> str:
        """Digest of the dataset that all processes of this rank read; empty before the first answer."""
        return _text(self._agreed_digest)

    def agree(self, digest: str) -> None:
        """Sets the digest for all processes, unless they agreed on one already, or it is too long for the memory."""
        if not self.agreed_digest and len(digest.encode()) <= _AGREED_BYTES:
            _write_text(self._agreed_digest, digest)

    def record_answer(self, worker: int, digest_hash: int) -> None:
        """Records a hash, which is not 0, of the digest that answered a worker."""
        self._hashes[worker % _MOST_WORKERS] = digest_hash  # of more workers, some share a place

    def has_other_answer(self, digest_hash: int) -> bool:
        """Whether a worker has recorded another hash."""
        recorded = self._hashes[self._hashes != 0]
        return bool((recorded != digest_hash).any())

    def forget_digests(self) -> None:
        """Forgets the agreed digest and the workers' answers."""
        self._agreed_digest.zero_()
        self._hashes.zero_()


def _text(memory: torch.Tensor) -> str:
    """Returns the text that `_write_text` wrote."""
    return memory.numpy().tobytes().rstrip(b"\0").decode()


def _write_text(memory: torch.Tensor, text: str) -> None:
    """Writes a text and zeros after it; the memory has room for it."""
    data = bytearray(text.encode().ljust(len(memory), b"\0"))
    memory.copy_(torch.frombuffer(data, dtype=torch.uint8))
