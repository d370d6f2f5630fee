"""This process's rank among all processes of a run: `global_rank`, from the process group or the environment.

Owns the environment variables of launchers, and the refusal of a launcher that sets only its own. Which data-parallel
rank that makes is in `ranks`.
"""

import os

import torch.distributed

LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NPROCS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
"""(variable of the rank, variable of the number of ranks) of launchers that do not set RANK and WORLD_SIZE. Slurm has
several for the number, of which its versions and commands do not all set each."""


def has_process_group() -> bool:
    """Whether this process has joined a default process group of torch.distributed."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def global_rank() -> tuple[int, int]:
    """Returns this process's (rank, world size) among all processes.

    Raises:
        ValueError: there is no process group, and the environment's variables are incomplete, wrong or not numbers.
    """
    if has_process_group():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = _variable("RANK"), _variable("WORLD_SIZE")
    if rank is None and world_size in (None, 1):
        return 0, 1
    if rank is None or world_size is None:
        there, missing = ("RANK", "WORLD_SIZE") if world_size is None else ("WORLD_SIZE", "RANK")
        raise ValueError(
            f"{there}={os.environ[there]} is set and {missing} is not: start the script with torchrun, set both, or "
            "pass rank=(rank, world_size)"
        )
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"RANK={rank} is outside of [0, {world_size}), as WORLD_SIZE={world_size} says; set both anew")
    return rank, world_size


def _variable(name: str) -> int | None:
    """Returns the number in an environment variable; None if it is not set, a ValueError if it is not a number."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(
            f"{name}={text} is no number of at least 0; set it as torchrun does, or pass rank=(rank, world_size)"
        )
    return int(text)


def refuse_launchers() -> None:
    """Raises a ValueError if RANK is not set and a launcher's own variables say that this process is one of several.

    Raises one also if these variables are not numbers.
    """
    if _variable("RANK") is not None:  # then WORLD_SIZE is set too, or `global_rank` has refused it: they decide
        return
    for of_rank, of_size in LAUNCHERS:
        if of_rank not in os.environ:
            continue
        rank, size = _variable(of_rank), _variable(of_size)
        if rank is not None and size is not None and size > 1:
            raise ValueError(
                f"{of_rank}={rank} and {of_size}={size} say that this is one of {size} processes, and RANK and "
                f"WORLD_SIZE are not set: pass rank=({rank}, {size}) if all of them share the epoch and none of them a "
                "model, rank=(0, 1) if each trains by itself, or start them with torchrun"
            )
