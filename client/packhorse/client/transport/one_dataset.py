"""One dataset for each name: what a client's first answer named, its later ones must be about.

Owns the digests that bind a client, and what the ranks of a run have in common. Leaves the check to servers, which may
keep an earlier version, and what several workers share to `loading/_progress`.
"""

import hashlib
import os
from collections.abc import Mapping

from packhorse.client.errors import DigestMismatchError
from packhorse.wire import own_digest

_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "RAY_JOB_ID")
"""Variables of launchers that name a job, the same for all its ranks and for no other job."""


class OneDataset:
    """The digests that a client is bound to, by the name of the dataset. Safe to be used by many threads.

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
        """Returns the digest that a dataset must have; empty if nothing has answered yet."""
        return self._digests.get(name, "")

    def bind(self, name: str, digest: str, *, may_change: bool = False) -> None:
        """Binds the client to what an answer named, or compares it with what an earlier one did.

        Args:
            name: the dataset's name.
            digest: the digest in the answer.
            may_change: whether the dataset's digest may change, as a mixture's does; its server then compares.

        Raises:
            DigestMismatchError: it is another dataset.
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
    """Returns what the ranks of this process's run have in common, by their launcher; empty if that does not say.

    It is a hash: neither a job's name nor an address leaves the machine.

    Example:
        >>> run_id_of({"SLURM_JOB_ID": "4711"}), run_id_of({})
        ('994e11387d707a37', '')
    """
    job = next((f"{name}={environment[name]}" for name in _JOBS if environment.get(name) not in (None, "", "none")), "")
    if not job and environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        job = f"MASTER={environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    return hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:16] if job else ""
