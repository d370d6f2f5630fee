"""Which data-parallel rank this process is: `find_rank`.

Reads it from arguments, meshes, Megatron and the launcher's environment. Ranks that hold parts of one model (tensor,
pipeline, context parallelism) share a data-parallel rank, because they must get the same batches. Leaves sending
batches between ranks of one model to `peers`, and dataloader workers to `dataset`.
"""

import os
import sys
import warnings
from contextlib import suppress
from math import prod
from typing import Any

import torch.distributed

from packhorse.topology import checked_integer

DATA_DIMENSIONS = frozenset({"dp", "ddp", "data", "batch", "replicate", "shard", "fsdp", "hsdp"})
"""Names of mesh dimensions that divide the data. So does every name that begins with `dp_`, such as `dp_replicate`."""

MODEL_DIMENSIONS = frozenset({"tp", "pp", "cp", "sp", "tensor", "pipeline", "context", "sequence", "model"})
"""Names of mesh dimensions that divide one model. Expert parallelism is not among them: in some stacks its ranks share
their data, in others each has its own."""

_SIGNS_IN_ENVIRONMENT = (
    "TP_SIZE",
    "PP_SIZE",
    "CP_SIZE",
    "TENSOR_PARALLEL_SIZE",
    "PIPELINE_PARALLEL_SIZE",
    "CONTEXT_PARALLEL_SIZE",
    "TENSOR_MODEL_PARALLEL_SIZE",
    "PIPELINE_MODEL_PARALLEL_SIZE",
    "PARALLELISM_CONFIG_TP_SIZE",
    "PARALLELISM_CONFIG_CP_SIZE",
    "PARALLELISM_CONFIG_SP_SIZE",
)
"""Environment variables of launchers; a value above 1 means that several ranks share a model."""

_LAUNCHERS = (
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
"""(variable of the rank, variable of the number of ranks) of launchers that do not set RANK and WORLD_SIZE."""


def find_rank(rank: Any = None) -> tuple[int, int]:
    """Returns the data-parallel (rank, world_size) of this process.

    The first of these that exists decides: the argument (a pair, or a mesh's data dimensions); Megatron's parallel
    state, if it is initialised; the process group, or RANK and WORLD_SIZE; (0, 1). If another launcher (srun, mpirun)
    started several processes without these two variables, that is an error, because they may or may not share a run.

    Example:
        >>> find_rank((1, 4))
        (1, 4)

    Args:
        rank: (rank, world_size); a torch DeviceMesh with named dimensions, or only its data dimension (`mesh["dp"]`);
            None to find them.

    Raises:
        ValueError: `rank` is none of these or outside [0, world_size); or several ranks share a model, and it is not
            known which; or the environment's variables are incomplete or not numbers.
    """
    if isinstance(rank, tuple | list) and len(rank) == 2:
        world_size = checked_integer("world_size", rank[1], 1)
        found = checked_integer("rank", rank[0], 0, world_size - 1)
        _warn_of_global_rank(found, world_size)
    elif rank is not None:
        found, world_size = _rank_in_mesh(rank)
    elif (megatron := megatron_state()) is not None:
        found, world_size = megatron.get_data_parallel_rank(), megatron.get_data_parallel_world_size()
    else:
        found, world_size = _global_rank_checked()
    if not 0 <= found < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), got {found}")
    return found, world_size


def _global_rank_checked() -> tuple[int, int]:
    """Returns the global (rank, world_size); a ValueError if a launcher or model parallelism makes it doubtful."""
    rank, world_size = _global_rank()
    if world_size == 1 and not _is_initialized():
        _refuse_launchers()
    if world_size > 1 and (sign := _sign_of_model_parallelism()):
        raise ValueError(_text_of_global_rank(sign, rank, world_size))
    return rank, world_size


def _warn_of_global_rank(rank: int, world_size: int) -> None:
    """Warns if a given (rank, world_size) is the global one, although some of the processes share a model."""
    if world_size == 1:
        return
    with suppress(ValueError):  # if a rank is given, wrong variables in the environment do not matter
        if (rank, world_size) != _global_rank():
            return
    if sign := _sign_of_model_parallelism():
        warnings.warn(_text_of_global_rank(sign, rank, world_size), stacklevel=4)


def _text_of_global_rank(sign: str, rank: int, world_size: int) -> str:
    return (
        f"{sign}: the ranks that share a model must get the same batches, and global rank {rank} of {world_size} "
        "is not the data-parallel one; pass rank=mesh, or rank=(rank, world_size) of the data-parallel group"
    )


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _global_rank() -> tuple[int, int]:
    """Returns this process's (rank, world size) among all processes."""
    if _is_initialized():
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


def _refuse_launchers() -> None:
    """Raises a ValueError if a launcher's own variables say that this process is one of several."""
    for of_rank, of_size in _LAUNCHERS:
        if of_rank not in os.environ:
            continue
        rank, size = _variable(of_rank), _variable(of_size)
        if rank is not None and size is not None and size > 1:
            raise ValueError(
                f"{of_rank}={rank} and {of_size}={size} say that this is one of {size} processes, and RANK and "
                f"WORLD_SIZE are not set: pass rank=({rank}, {size}) if all of them share the epoch and none of them a "
                "model, rank=(0, 1) if each trains by itself, or start them with torchrun"
            )


def _rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """Returns (rank, world_size) over the data dimensions of a device mesh; the last dimension counts fastest."""
    if not hasattr(mesh, "mesh_dim_names"):
        raise ValueError(f"rank must be (rank, world_size) or a torch DeviceMesh, got {mesh!r:.60}")
    names, sizes = mesh.mesh_dim_names, tuple(mesh.shape)
    if names is None:
        if len(sizes) > 1:
            raise ValueError("the device mesh has unnamed dimensions; pass its data dimension, e.g. mesh['dp']")
        names = ("dp",)
    # A mesh of one dimension is taken whatever its name, unless the name has both data and model, as dp_cp does.
    is_known = [_is_data(name) or _is_model(name) or (len(sizes) == 1 and not _is_mixed(name)) for name in names]
    unknown = [name for name, size, known in zip(names, sizes, is_known, strict=True) if size > 1 and not known]
    if unknown:
        raise ValueError(
            f"the device mesh has the dimensions {', '.join(names)}, and whether data is divided over "
            f"{', '.join(unknown)} is not known; pass only the data dimensions, e.g. mesh['dp'], or "
            "rank=(rank, world_size)"
        )
    data = [i for i, name in enumerate(names) if not _is_model(name)]
    rank = 0
    for dimension in data:
        rank = rank * sizes[dimension] + mesh.get_local_rank(dimension)
    return rank, prod(sizes[dimension] for dimension in data)


def _is_data(name: str) -> bool:
    return (name.removesuffix("_parallel") in DATA_DIMENSIONS or name.startswith("dp_")) and not _is_mixed(name)


def _is_model(name: str) -> bool:
    return name.removesuffix("_parallel") in MODEL_DIMENSIONS


def _is_mixed(name: str) -> bool:
    """Whether a dimension divides both data and model: one that was flattened from several, e.g. dp_cp."""
    return not MODEL_DIMENSIONS.isdisjoint(name.split("_")) and not DATA_DIMENSIONS.isdisjoint(name.split("_"))


def megatron_state() -> Any:
    """Returns Megatron's parallel state, if this process has initialised it. Never imports Megatron."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    return state if state is not None and state.model_parallel_is_initialized() else None


def _sign_of_model_parallelism() -> str:
    """Returns the evidence that several ranks share one model, for messages; empty if there is none."""
    for name in _SIGNS_IN_ENVIRONMENT:
        if os.environ.get(name, "").isdecimal() and int(os.environ[name]) > 1:
            return f"{name}={os.environ[name]} divides the model over ranks"
    if (megatron := megatron_state()) is not None:
        share = _global_rank()[1] // megatron.get_data_parallel_world_size()
        if share > 1:
            return f"Megatron divides the model over {share} ranks"
    if (share := _accelerate_share()) > 1:
        return f"accelerate's ParallelismConfig divides the model over {share} ranks"
    if _is_initialized():
        from torch.distributed import distributed_c10d

        for group, ranks in getattr(distributed_c10d._world, "pg_group_ranks", {}).items():
            dimension = str(getattr(group, "group_desc", "")).removeprefix("mesh_")
            if len(ranks) > 1 and _is_model(dimension):
                return f"a device mesh divides the model over its dimension {dimension!r}"
    return ""


def _accelerate_share() -> int:
    """Returns how many ranks share a model, as this process's Accelerator is configured; 1 without an Accelerator."""
    state: Any = sys.modules.get("accelerate.state")
    config = None if state is None else state.AcceleratorState._shared_state.get("parallelism_config")
    return 1 if config is None else int(config.non_data_parallel_size)
