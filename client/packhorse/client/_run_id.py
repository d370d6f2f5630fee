"""Which ranks belong to one run, by their launcher: `run_id_of`.

A stream carries what it returns, so that servers notice a run that reads two datasets. Leaves the digests of a client's
datasets to `transport/one_dataset`, and what the ranks of a process group share to `loading/_agreement`.
"""

import hashlib
import os
from collections.abc import Mapping

_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "RAY_JOB_ID")
"""Environment variables in which launchers name a job: the same for all ranks of the job, and for no other job."""

_UNNAMED = ("", "none")
"""Values that name no job. "none" is torchrun's, if it was given no id."""


def run_id_of(environment: Mapping[str, str] = os.environ) -> str:
    """Returns an identifier that all ranks of this process's run share, from their launcher; empty without a launcher.

    It is a hash of the job's name, or of the master's address, so neither of them leaves the machine.

    Example:
        >>> run_id_of({"SLURM_JOB_ID": "4711"}), run_id_of({})
        ('994e11387d707a37', '')
    """
    job = next((f"{name}={environment[name]}" for name in _JOBS if environment.get(name, "") not in _UNNAMED), "")
    if not job and environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        job = f"MASTER={environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    return hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:16] if job else ""
