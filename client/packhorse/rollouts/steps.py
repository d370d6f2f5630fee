"""What packing rollouts and packing pairs share: their options, the planner's bins, and the assembler of batches.

Owns the call of the planner, in this process or on a server, and which options of rows are refused. Leaves what is
packed to `given`, `pairs`, `tree_packs` and `transfer_queue`, and the keys of batches to `pack` and `pairs`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BatchAssembler, BinBlock, Client, RetryPolicy
from packhorse.client.batches import Media, RowFormat
from packhorse.client.errors import InvalidRequestError
from packhorse.client.options import PackOptions
from packhorse.client.transport.embedded import EmbeddedPlanner
from packhorse.client.transport.requests import NO_RESOURCES, Resources

_REFUSED = {
    "separators": "the tokens are trained as they are given; put separators into them",
    "continue_positions": "no sequence is split here, so its positions begin at 0; leave it out",
    "shared_prefix": "give prefixes='tree', so that common prefixes stand once, or leave it out",
}
"""Options of rows that rollouts and pairs refuse → what to do instead. All other fields of `RowFormat` are allowed."""


class SharedOptions(TypedDict, total=False):
    """Types of the options that `pack_rollouts` and `pack_pairs` share; both say what they mean."""

    client: Client | None
    world_size: int
    batch_size: int
    packing: PackOptions
    flatten: bool
    total_multiple_of: int
    media: Media | None


def assembler_of(
    max_seq_len: int,
    prefixes: str,
    rows: Mapping[str, Any],
    *,
    pad_token_id: int,
    shift_labels: bool | None,
    flatten: bool,
) -> BatchAssembler:
    """Checks the options of rows, and returns the assembler of batches of rollouts or pairs.

    The arguments are those of `pack_rollouts`; `rows` are further fields of `RowFormat`, by name.

    Raises:
        TypeError: a name in `rows` is not a field of `RowFormat`.
        ValueError: prefixes is neither of the two, or an option is out of range, refused or does not go with trees.
    """
    if prefixes not in ("repeated", "tree"):
        raise ValueError(f"prefixes must be 'repeated' or 'tree', got {prefixes!r}")
    known = {field.name for field in fields(RowFormat)}
    for name in rows:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}; options of rows are {', '.join(sorted(known))}")
        if name in _REFUSED:
            raise ValueError(f"{name} is not for rollouts and pairs: {_REFUSED[name]}")
    if rows.get("total_multiple_of", 1) != 1 and not flatten:
        raise ValueError("total_multiple_of is for flat batches; give flatten=True, or leave it out")
    is_tree = prefixes == "tree"
    return BatchAssembler(
        max_seq_len,
        pad_token_id=pad_token_id,
        # None means False in rows and True in trees, for which the assembler refuses False.
        shift_labels=shift_labels if is_tree else bool(shift_labels),
        flatten=flatten,
        shared_prefix="tree" if is_tree else False,
        **rows,
    )


def bins_of_steps(
    client: Client | None,
    rooms: NDArray[np.int64],
    max_seq_len: int,
    *,
    world_size: int,
    batch_size: int,
    items_name: str,
    packing: PackOptions,
    separate_by: NDArray[np.int64] | None = None,
    resources: Resources = NO_RESOURCES,
    costs: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Packs items into bins; the number of bins is a multiple of world_size · batch_size.

    An item takes `rooms` tokens, and `items_name` names items in errors, such as "rollouts". Items with different
    numbers in `separate_by` share no bin. `resources` and `costs` are as in `Client.pack_sequences`. Without a client,
    this process packs.

    Returns:
        For each bin the indices of its items: int64.

    Raises:
        ValueError: world_size or batch_size is out of range.
        InvalidRequestError: the service refuses.
    """
    if world_size < 1 or batch_size < 1:
        raise ValueError(f"world_size and batch_size must be at least 1, got {world_size} and {batch_size}")
    try:
        return (client or Client(EmbeddedPlanner(), RetryPolicy())).pack_sequences(
            rooms,
            max_seq_len,
            num_bins_multiple_of=world_size * batch_size,
            packing=packing,
            separate_by=separate_by,
            resources=resources,
            costs=costs,
        )
    except InvalidRequestError as error:
        # The service knows only the product, so the two numbers that the caller gave are named here.
        if error.metadata.get("field") != "num_bins_multiple_of":
            raise
        raise InvalidRequestError(
            f"world_size {world_size} times batch_size {batch_size} packs make a step ({error}); pass "
            f"packing=PackOptions(allow_empty=True) for packs of padding with weight 0, "
            f"a smaller world_size or batch_size, or more {items_name}",
            error.metadata,
        ) from None


def block_of(bins: list[NDArray[np.int64]], lengths: NDArray[np.int64]) -> BinBlock:
    """Returns one block of all bins: `bins` hold indices of sequences, `lengths` the tokens of each sequence, int64."""
    ids = np.concatenate(bins)
    return BinBlock(
        ids=ids,
        lengths=lengths[ids].astype(np.int32),
        bin_ends=np.cumsum([len(members) for members in bins], dtype=np.int64),
        positions=np.arange(len(bins)),
    )
