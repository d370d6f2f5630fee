"""What the dimensions of a device mesh divide, the data or one model, and a process's data-parallel rank in it.

Owns the names of dimensions. Leaves processes without a mesh to `ranks`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

_DATA_DIMENSIONS = frozenset({"dp", "ddp", "data", "batch", "replicate", "shard", "fsdp", "hsdp"})
"""Names of mesh dimensions that divide the data. So does every name that begins with `dp_`, such as `dp_replicate`."""

_MODEL_DIMENSIONS = frozenset({"tp", "pp", "cp", "sp", "tensor", "pipeline", "context", "sequence", "model"})
"""Names of mesh dimensions that divide one model. Expert parallelism is not among them: in some stacks its ranks share
their data, in others each has its own."""


def rank_in_mesh(mesh: Any) -> tuple[int, int]:
    """Returns (rank, world_size) over the data dimensions of a device mesh; the last dimension counts fastest.

    Raises:
        ValueError: it is no mesh, or it is not known which of its dimensions divide the data.
    """
    if not hasattr(mesh, "mesh_dim_names"):
        raise ValueError(f"rank must be (rank, world_size) or a torch DeviceMesh, got {mesh!r:.60}")
    names, sizes = mesh.mesh_dim_names, tuple(mesh.shape)
    if names is None:
        if len(sizes) > 1:
            raise ValueError("the device mesh has unnamed dimensions; pass its data dimension, e.g. mesh['dp']")
        names = ("dp",)
    if unknown := _unknown_dimensions(names, sizes):
        raise ValueError(
            f"the device mesh has the dimensions {', '.join(names)}, and whether data is divided over "
            f"{', '.join(unknown)} is not known; pass only the data dimensions, e.g. mesh['dp'], or "
            "rank=(rank, world_size)"
        )
    data = [i for i, name in enumerate(names) if not is_model_dimension(name)]
    rank = 0
    for dimension in data:
        rank = rank * sizes[dimension] + mesh.get_local_rank(dimension)
    return rank, prod(sizes[dimension] for dimension in data)


def _unknown_dimensions(names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Returns the names of dimensions of which it matters, but is not known, whether they divide the data.

    A dimension of size 1 divides nothing. The only dimension of a mesh divides the data if its name says nothing; a
    name of both data and model, such as dp_cp, stays unknown.
    """

    def is_known(name: str) -> bool:
        return _is_data_dimension(name) or is_model_dimension(name) or (len(sizes) == 1 and not _is_mixed(name))

    return [name for name, size in zip(names, sizes, strict=True) if size > 1 and not is_known(name)]


def _is_data_dimension(name: str) -> bool:
    """Whether a dimension of this name divides the data alone."""
    return (name.removesuffix("_parallel") in _DATA_DIMENSIONS or name.startswith("dp_")) and not _is_mixed(name)


def is_model_dimension(name: str) -> bool:
    """Whether a dimension of this name divides one model."""
    return name.removesuffix("_parallel") in _MODEL_DIMENSIONS


def _is_mixed(name: str) -> bool:
    """Whether a dimension divides both data and model: one that was flattened from several, e.g. dp_cp."""
    return not _MODEL_DIMENSIONS.isdisjoint(name.split("_")) and not _DATA_DIMENSIONS.isdisjoint(name.split("_"))
