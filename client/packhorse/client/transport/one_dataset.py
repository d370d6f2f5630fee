"""One dataset for each name: a client's first answer names a digest, and all later answers must have the same.

Owns the digests that a client is bound to, and the hash by which the ranks of a run are known to belong together.
Servers compare the digest in each request, since they may still have an earlier version. Leaves what the workers of a
rank share to `loading/_progress`, and what ranks share to `loading/_agreement`.
"""

import hashlib
import os
from collections.abc import Mapping

from packhorse.client.errors import DigestMismatchError
from packhorse.wire import own_digest

_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "RAY_JOB_ID")
"""Environment variables in which launchers name a job: the same for all ranks of the job, and for no other job."""


class OneDataset:
    """The digests that a client is bound to, by the name of the dataset. Several threads may use it.

    Example:
        >>> bound = OneDataset()
        >>> bound.bind("corpus", "11-22-33-44+skip=5:6")
        >>> bound.digest_of("corpus"), bound.digest_of("books")
        ('11-22-33-44', '')
        >>> bound.bind("corpus", "11-22-33-55")
        Traceback (most recent call last):
            ...
        packhorse.client.errors.DigestMismatchError: dataset 'corpus' had digest 11-22-33-44 in an earlier answer, ...
    """

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def digest_of(self, name: str) -> str:
        """Returns the digest that a dataset must have; empty if there was no answer about it yet."""
        return self._digests.get(name, "")

    def bind(self, name: str, digest: str, *, may_change: bool = False) -> None:
        """Binds the client to an answer's digest; if it is bound already, compares the two.

        The part of a digest that names skips does not count.

        Args:
            name: the dataset's name.
            digest: the digest in the answer.
            may_change: whether the digest may change, as a mixture's does when a stage is appended. Then only the
                server compares.

        Raises:
            DigestMismatchError: the client is bound to another digest.
        """
        own = own_digest(digest)
        bound = self._digests.setdefault(name, own)
        if bound != own and not may_change:
            raise DigestMismatchError(
                f"dataset {name!r} had digest {bound} in an earlier answer, and now has {own}: replicas serve "
                "different data under one name, or it was replaced; serve the same everywhere, or connect again",
                {"expected": bound, "actual": own, "dataset": name},
            )


def run_id_of(environment: Mapping[str, str] = os.environ) -> str:
    """Returns an identifier that all ranks of this process's run share, from their launcher; empty without a launcher.

    It is a hash of the job's name, or of the master's address, so neither of them leaves the machine.

    Example:
        >>> run_id_of({"SLURM_JOB_ID": "4711"}), run_id_of({})
        ('994e11387d707a37', '')
    """
    job = next((f"{name}={environment[name]}" for name in _JOBS if environment.get(name) not in (None, "", "none")), "")
    if not job and environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        job = f"MASTER={environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    return hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:16] if job else ""
