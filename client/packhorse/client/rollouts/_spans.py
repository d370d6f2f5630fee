"""Many rows of different lengths in one flat array.

Owns flattening lists, arrays and tensors, refusing the first row with a flaw, and the indices of
spans; leaves what rows mean to `given` and `pairs`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def as_array(value: Any) -> NDArray[Any]:
    """A list, array or tensor as an array in host memory; bfloat16, which NumPy lacks, as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


def flatten(name: str, rows: Sequence[Any], kinds: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Lays rows end to end.

    Args:
        name: of the argument, for errors.
        rows: R rows, each a list, array or tensor [length]; at least one.
        kinds: NumPy's letters of the types that are taken ("iu" for integers).

    Returns:
        The values [total], and each row's length, int64 [R].

    Raises:
        ValueError: a row is not 1-D or of another type; names the row.
    """
    arrays = [as_array(row) for row in rows]
    for index, array in enumerate(arrays):
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise ValueError(
                f"{name}[{index}] must be 1-D and of a type that fits, got {array.dtype} of shape {list(array.shape)}"
            )
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    return np.concatenate([array for array in arrays if array.size] or [np.zeros(0, dtype=np.int64)]), lengths


def range_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of all elements of spans [starts[i], starts[i] + lengths[i]), one span after the other: int64 [total]."""
    offsets = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - offsets, lengths)


def refuse_flaws(flaws: Iterable[tuple[NDArray[np.bool_], str]], describe: Callable[[int], str]) -> None:
    """Refuses rows of which one has a flaw.

    Args:
        flaws: for each kind, which rows have it, bool [R], and what it means for the caller.
        describe: tells which row it is, by its index.

    Raises:
        ValueError: names the first row with the first flaw that any has.
    """
    for has_flaw, means in flaws:
        if has_flaw.any():
            raise ValueError(f"{describe(int(has_flaw.argmax()))}: {means}")
