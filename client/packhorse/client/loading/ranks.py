"""Which data-parallel rank this process is.

Reads it from arguments, meshes, Megatron and the launcher's environment. Ranks that hold parts of one model (tensor,
pipeline, context parallelism) share a data-parallel rank, because they must get the same batches. Leaves dataloader
workers to `dataset`.
"""

import os
import sys
import warnings
from math import prod
from types import FrameType
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


_DEALERS = ("DataLoaderDispatcher.__iter__", "IterableDatasetShard.__iter__")
"""Where accelerate deals out batches."""


def find_rank(rank: Any = None) -> tuple[int, int]:
    """Returns the data-parallel (rank, world_size) of this process.

    The first of these that exists decides: the argument (a pair, or a mesh's data dimensions); Megatron's parallel
    state, if it is initialised; the process group, or RANK and WORLD_SIZE; (0, 1).

    Example:
        >>> find_rank((1, 4))
        (1, 4)

    Args:
        rank: (rank, world_size); a torch DeviceMesh with named dimensions, or its data dimension alone (`mesh["dp"]`);
            None to find them.

    Raises:
        ValueError: rank is none of these or outside [0, world_size), or several ranks share a model and nothing says
            which of them share their data.
    """
    if isinstance(rank, tuple | list) and len(rank) == 2:
        size = checked_integer("world_size", rank[1], 1)
        found = checked_integer("rank", rank[0], 0, size - 1), size
        _warn_of_global_ranks(found)
    elif rank is not None:
        found = _of_mesh(rank)
    elif (megatron := megatron_state()) is not None:
        found = megatron.get_data_parallel_rank(), megatron.get_data_parallel_world_size()
    else:
        found = _of_processes()
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"rank must be in [0, {found[1]}), got {found[0]}")
    return found


def _of_processes() -> tuple[int, int]:
    found = _global_rank()
    if found[1] > 1 and (sign := _sign_of_model_parallelism()):
        raise ValueError(_not_data_parallel(sign, found))
    return found


def _warn_of_global_ranks(given: tuple[int, int]) -> None:
    """Warns if the given numbers count all processes although some of these share a model."""
    if given[1] > 1 and given == _global_rank() and (sign := _sign_of_model_parallelism()):
        warnings.warn(_not_data_parallel(sign, given), stacklevel=4)


def _not_data_parallel(sign: str, found: tuple[int, int]) -> str:
    return (
        f"{sign}: the ranks that share a model must get the same batches, and global rank {found[0]} of {found[1]} "
        "is not the data-parallel one; pass rank=mesh, or rank=(rank, world_size) of the data-parallel group"
    )


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _global_rank() -> tuple[int, int]:
    """(rank, world size) of all processes."""
    if _is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _of_mesh(mesh: Any) -> tuple[int, int]:
    if not hasattr(mesh, "mesh_dim_names"):
        raise ValueError(f"rank must be (rank, world_size) or a torch DeviceMesh, got {mesh!r:.60}")
    names, sizes = mesh.mesh_dim_names, tuple(mesh.shape)
    if names is None:
        if len(sizes) > 1:
            raise ValueError("the device mesh has unnamed dimensions; pass its data dimension, e.g. mesh['dp']")
        names = ("dp",)
    # One dimension of any name is the caller's choice, unless its name speaks of both, as a flattened dp_cp does.
    is_known = [_is_data(n) or _is_model(n) or (len(sizes) == 1 and not _is_mixed(n)) for n in names]
    unknown = [n for n, size, known in zip(names, sizes, is_known, strict=True) if size > 1 and not known]
    if unknown:
        raise ValueError(
            f"the device mesh has the dimensions {', '.join(names)}, and whether data is divided over "
            f"{', '.join(unknown)} is not known; pass the data dimensions alone, e.g. mesh['dp'], or "
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
    """Whether it divides both data and model, as a dimension flattened from several does."""
    return not MODEL_DIMENSIONS.isdisjoint(name.split("_")) and not DATA_DIMENSIONS.isdisjoint(name.split("_"))


def megatron_state() -> Any:
    """Megatron's parallel state, if this process has initialised it. Never imports Megatron."""
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
    """How many ranks share a model, by the configuration of this process's Accelerator; 1 without one."""
    state: Any = sys.modules.get("accelerate.state")
    config = None if state is None else state.AcceleratorState._shared_state.get("parallelism_config")
    return 1 if config is None else int(config.non_data_parallel_size)


def refuse_dispatching() -> None:
    """Raises a ValueError if accelerate iterates in order to deal out batches, here or in the parent of this worker."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader" and frame.f_code.co_qualname in _DEALERS:
            raise ValueError(
                "accelerate deals this DataLoader's batches over the ranks, but a PackedDataset is divided over them "
                "already; do not pass the DataLoader to accelerator.prepare, or train with create_packed_dataloader, "
                "whose loader prepare leaves as it is"
            )
        frame = frame.f_back
