"""Rows of different lengths, laid end to end and checked: the arguments for rollouts, pairs and trees.

Owns the checks that all such arguments need, and the indices of rows in flat arrays. Leaves what an argument means to
`given`, `pairs`, `prefix_tree` and `trl_async`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BOOLS, INTEGERS, NUMBERS = "b", "iu", "fiu"
"""NumPy's letters of the kinds of dtype that an argument may have; numbers are integers and floats."""


def as_array(value: Any) -> NDArray[Any]:
    """Returns a list, array or tensor as an array in host memory; bfloat16, which NumPy lacks, as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


def flatten(name: str, rows: Sequence[Any], kinds: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Lays rows end to end.

    Args:
        name: the argument's name, for errors.
        rows: R rows, each a list, array or tensor [length]; at least one.
        kinds: letters of the dtypes that are taken, such as `INTEGERS`.

    Returns:
        The values [total], and each row's length, int64 [R].

    Raises:
        ValueError: a row is not 1-D, or of another type; the message names the row.
    """
    arrays = [as_array(row) for row in rows]
    for index, array in enumerate(arrays):
        # The dtype of an empty row is NumPy's choice (float64 for []), so it says nothing.
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise ValueError(
                f"{name}[{index}] must be 1-D and of a type that fits, got {array.dtype} of shape {list(array.shape)}"
            )
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    filled = [array for array in arrays if array.size] or [np.zeros(0, dtype=np.int64)]
    return np.concatenate(filled), lengths


def rows_of_tokens(
    name: str, rows: Sequence[Any], lengths: NDArray[np.int64], kinds: str, *, row_name: str = "response"
) -> NDArray[Any]:
    """Lays rows end to end, each with one entry for every token of its response or sequence.

    Args:
        name: the argument's name, for errors.
        rows: R rows.
        lengths: tokens of each response, or sequence: int64 [R].
        kinds: as in `flatten`.
        row_name: "response" or "sequence", for errors.

    Returns:
        The entries: [total].

    Raises:
        ValueError: see `flatten`; or there are not R rows, or a row has another length.
    """
    if len(rows) != len(lengths):
        raise ValueError(f"{name} has {len(rows)} rows for {len(lengths)} {row_name}s")
    flat, row_lengths = flatten(name, rows, kinds)
    if (row_lengths != lengths).any():
        index = int((row_lengths != lengths).argmax())
        raise ValueError(
            f"{name}[{index}] has {row_lengths[index]} entries for a {row_name} of {lengths[index]} tokens"
        )
    return flat


def one_each(name: str, given: Any, kinds: str) -> NDArray[Any]:
    """Returns an argument with one value for each row as an array; a ValueError if it is not 1-D or of another type."""
    array = as_array(given)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise ValueError(f"{name} must hold one value of a type that fits for each row, got {array.dtype}")
    return array


def check_finite(
    name: str,
    values: NDArray[np.floating],
    lengths: NDArray[np.int64],
    *,
    row_name: str = "rollout",
    token_name: str = "response token",
) -> None:
    """Raises a ValueError, which names the row and the token, if the value of a trained token is NaN or infinite.

    Args:
        name: the argument's name, for errors.
        values: value of each token, 0 if it is not trained: [total].
        lengths: tokens of each row: int64 [R].
        row_name: what a row is, for errors.
        token_name: what a token is, for errors.
    """
    if not np.isfinite(values).all():
        at = int(np.isfinite(values).argmin())
        ends = np.cumsum(lengths)
        index = int(np.searchsorted(ends, at, side="right"))
        start = ends[index] - lengths[index]
        raise ValueError(
            f"{name} of {row_name} {index} is {values[at]} at {token_name} {at - start}, which is trained on"
        )


def refuse_flaws(flaws: Iterable[tuple[NDArray[np.bool_], str]], describe: Callable[[int], str]) -> None:
    """Raises a ValueError if a row has a flaw.

    Args:
        flaws: for each kind of flaw: which rows have it, bool [R], and its text in the message.
        describe: returns the text in the message for a row, by its index.

    Raises:
        ValueError: a row has a flaw; the message is about the first kind that occurs, and its first row.
    """
    for has_flaw, text in flaws:
        if has_flaw.any():
            raise ValueError(f"{describe(int(has_flaw.argmax()))}: {text}")


def range_indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the integers of all ranges [starts[i], starts[i] + lengths[i]), range after range: int64 [total].

    Starts [7, 2] and lengths [2, 3] give [7, 8, 2, 3, 4].
    """
    offsets = np.cumsum(lengths) - lengths  # of each range in the result
    return np.arange(int(lengths.sum())) + np.repeat(starts - offsets, lengths)
