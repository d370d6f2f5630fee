"""Bins for every rank of a step, packed from a trainer's own sequences.

Owns the call of the planner, in this process or on a server, and the message where there is too little to pack;
leaves what is packed to `pack` and `pairs`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.api import Client
from packhorse.client.errors import InvalidRequestError
from packhorse.client.options import PackOptions, RetryPolicy
from packhorse.client.streams.blocks import BinBlock
from packhorse.client.transport.embedded import EmbeddedPlanner
from packhorse.client.transport.requests import NO_RESOURCES, Resources


def bins_of_steps(
    client: Client | None,
    rooms: NDArray[np.int64],
    max_seq_len: int,
    *,
    world_size: int,
    batch_size: int,
    what: str,
    packing: PackOptions,
    separate_by: NDArray[np.int64] | None = None,
    resources: Resources = NO_RESOURCES,
) -> list[NDArray[np.int64]]:
    """Packs rooms into bins, as many for every rank and batch.

    Args:
        client: whose server packs; None packs in this process.
        rooms: tokens that each item takes: int64 [S].
        max_seq_len: a bin's capacity in tokens.
        world_size: data-parallel ranks.
        batch_size: bins in a batch.
        what: the items' name, for errors.
        packing: the packer and its limits.
        separate_by: items with different numbers share no bin: int64 [S]; None where all may.
        resources: as in `Client.pack_sequences`.

    Returns:
        Each bin's indices into `rooms`: int64.

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
        )
    except InvalidRequestError as error:
        if error.metadata.get("field") != "num_bins_multiple_of":
            raise
        raise InvalidRequestError(
            f"world_size {world_size} times batch_size {batch_size} packs make a step ({error}); pass "
            f"packing=PackOptions(allow_empty=True) for packs of padding with weight 0, "
            f"a smaller world_size or batch_size, or more {what}",
            error.metadata,
        ) from None


def block_of(bins: list[NDArray[np.int64]], lengths: NDArray[np.int64]) -> BinBlock:
    """Makes one block of bins of sequence numbers, whose lengths are int64 [sequences]."""
    ids = np.concatenate(bins)
    return BinBlock(
        ids=ids,
        lengths=lengths[ids].astype(np.int32),
        bin_ends=np.cumsum([len(members) for members in bins], dtype=np.int64),
        positions=np.arange(len(bins)),
    )
