"""All workers of a loader read the same dataset: `WorkerDigests` compares the digests that servers gave them.

Owns the comparison. Leaves where digests lie to `workers/shared_progress`, and other ranks to `loading/_agreement`.
"""

import hashlib

from packhorse.client.errors import DigestMismatchError
from packhorse.client.loading.workers.current import current_worker
from packhorse.client.loading.workers.shared_progress import SharedProgress
from packhorse.wire import own_digest

_HASH_BYTES = 7
"""Bytes of a digest's hash: the number fits into an int64 that is not negative."""


class WorkerDigests:
    """The digests that the processes of one rank got, in the memory that they share.

    Args:
        shared: that memory.
    """

    def __init__(self, shared: SharedProgress) -> None:
        self._shared = shared

    @property
    def agreed(self) -> str:
        """Digest of the dataset that all processes of this rank read; empty before the first answer."""
        return self._shared.agreed_digest

    def bind(self, digest: str) -> None:
        """Binds all processes of this rank to the dataset with this digest, unless they are bound already."""
        self._shared.agree(own_digest(digest))

    def compare(self, dataset: str, digest: str) -> None:
        """Compares the digest that this worker got with those of the loader's other workers, and binds all to it.

        Each worker writes its digest before it looks at the others', so of two that open at once, at least one sees
        the other's.

        Raises:
            DigestMismatchError: another worker got another dataset of the same name.
        """
        hashed = hashlib.sha256(own_digest(digest).encode()).digest()
        digest_hash = int.from_bytes(hashed[:_HASH_BYTES]) + 1  # 0 stands for no answer
        self._shared.record_answer(current_worker().number, digest_hash)
        self.bind(digest)
        if self._shared.has_other_answer(digest_hash):
            raise DigestMismatchError(
                f"the workers of one loader got different datasets named {dataset!r}, this one digest "
                f"{own_digest(digest)}: replicas serve different data under one name, or it was replaced just now; "
                "serve the same everywhere, and begin again"
            )

    def forget(self) -> None:
        """Forgets what was agreed and what the workers got."""
        self._shared.forget_digests()
