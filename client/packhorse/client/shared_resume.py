"""A `Resume` that workers see change.

A persistent dataloader worker holds a copy of the dataset from when it was started; `set_epoch` in the main process
reaches it through this block of shared memory. Owns that block and nothing else.
"""

import torch

from packhorse.client.cursor import Resume

_DIGEST_BYTES = 128
_NUMBERS = 3


class SharedResume:
    """One Resume in shared memory; written by the main process between epochs, read by workers as they begin one."""

    def __init__(self, resume: Resume) -> None:
        self._numbers = torch.zeros(_NUMBERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._digest = torch.zeros(_DIGEST_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self.store(resume)

    def load(self) -> Resume:
        """Returns what was stored last."""
        epoch, start_position, first_step = self._numbers.tolist()
        digest = bytes(self._digest.tolist()).rstrip(b"\0").decode()
        return Resume(epoch=epoch, start_position=start_position, first_step=first_step, digest=digest)

    def store(self, resume: Resume) -> None:
        """Replaces what is stored."""
        digest = resume.digest.encode().ljust(_DIGEST_BYTES, b"\0")
        if len(digest) > _DIGEST_BYTES:
            raise ValueError(f"no digest of ours has {len(resume.digest)} characters")
        self._numbers.copy_(torch.tensor([resume.epoch, resume.start_position, resume.first_step]))
        self._digest.copy_(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
