"""Which data-parallel rank this process is: `find_rank`.

Ranks that hold parts of one model (tensor, pipeline, context parallelism) share a data-parallel rank, because they must
get the same batches. Owns which of the arguments, Megatron and the launcher decides, and the signs that ranks share a
model. Leaves meshes to `_mesh_dimensions`, the rank among all processes to `_global_rank`, sending batches between
ranks of one model to `peers`, and dataloader workers to `dataset`.
"""

import os
import sys
import warnings
from contextlib import suppress
from typing import Any

from packhorse.client.loading._global_rank import global_rank, has_process_group, refuse_launchers
from packhorse.client.loading._mesh_dimensions import is_model_dimension, rank_in_mesh
from packhorse.topology import checked_integer

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
        found, world_size = rank_in_mesh(rank)
    elif (megatron := megatron_state()) is not None:
        found, world_size = megatron.get_data_parallel_rank(), megatron.get_data_parallel_world_size()
    else:
        found, world_size = _global_rank_checked()
    if not 0 <= found < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), got {found}")
    return found, world_size


def _global_rank_checked() -> tuple[int, int]:
    """Returns the global (rank, world_size); a ValueError if a launcher or model parallelism makes it doubtful."""
    rank, world_size = global_rank()
    if world_size == 1 and not has_process_group():
        refuse_launchers()
    if world_size > 1 and (sign := _sign_of_model_parallelism()):
        raise ValueError(_text_of_global_rank(sign, rank, world_size))
    return rank, world_size


def _warn_of_global_rank(rank: int, world_size: int) -> None:
    """Warns if a given (rank, world_size) is the global one, although some of the processes share a model."""
    if world_size == 1:
        return
    with suppress(ValueError):  # if a rank is given, wrong variables in the environment do not matter
        if (rank, world_size) != global_rank():
            return
    if sign := _sign_of_model_parallelism():
        warnings.warn(_text_of_global_rank(sign, rank, world_size), stacklevel=4)


def _text_of_global_rank(sign: str, rank: int, world_size: int) -> str:
    """Returns what to say of a global rank that is taken for a data-parallel one, although a sign speaks against it."""
    return (
        f"{sign}: the ranks that share a model must get the same batches, and global rank {rank} of {world_size} "
        "is not the data-parallel one; pass rank=mesh, or rank=(rank, world_size) of the data-parallel group"
    )


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
        _, num_ranks = global_rank()
        ranks_of_model = num_ranks // megatron.get_data_parallel_world_size()
        if ranks_of_model > 1:
            return f"Megatron divides the model over {ranks_of_model} ranks"
    if (ranks_of_model := _ranks_of_model_in_accelerate()) > 1:
        return f"accelerate's ParallelismConfig divides the model over {ranks_of_model} ranks"
    if has_process_group():
        from torch.distributed import distributed_c10d

        # PyTorch lists its process groups only in private fields, which another version may lack.
        for group, ranks in getattr(distributed_c10d._world, "pg_group_ranks", {}).items():
            dimension = str(getattr(group, "group_desc", "")).removeprefix("mesh_")
            if len(ranks) > 1 and is_model_dimension(dimension):
                return f"a device mesh divides the model over its dimension {dimension!r}"
    return ""


def _ranks_of_model_in_accelerate() -> int:
    """Returns how many ranks share a model, as this process's Accelerator is configured; 1 without an Accelerator."""
    state: Any = sys.modules.get("accelerate.state")
    config = None if state is None else state.AcceleratorState._shared_state.get("parallelism_config")
    return 1 if config is None else int(config.non_data_parallel_size)
