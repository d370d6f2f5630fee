"""Prefixes that several sequences of a group see: what masks show beyond a sequence's own segment.

Owns where these pairs lie and the refusal where a kernel cannot show them; leaves which sequence has which prefix to
`layout`.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


def prefix_blocks(layout: PackLayout) -> Iterator[tuple[int, slice, slice]]:
    """Yields (row, queries, keys) of every sequence that sees a prefix; none where no prefix is shared."""
    seeing = np.flatnonzero(layout.prefixes >= 0)
    prefixes = layout.prefixes[seeing]
    rows, queries = np.divmod(layout.starts[seeing], layout.row_tokens)
    keys = layout.starts[prefixes] - rows * layout.row_tokens
    lengths = (layout.lengths[seeing], layout.lengths[prefixes])
    for row, query, key, num_queries, num_keys in zip(
        *(each.tolist() for each in (rows, queries, keys, *lengths)), strict=True
    ):
        yield row, slice(query, query + num_queries), slice(key, key + num_keys)


def fill_prefixes(mask: torch.Tensor, layout: PackLayout, value: float) -> None:
    """Writes one value where sequences see a prefix of a mask [B, 1, L, L] in host memory."""
    for row, queries, keys in prefix_blocks(layout):
        mask[row, 0, queries, keys] = value


def prefix_tokens(layout: PackLayout) -> NDArray[np.int64]:
    """First token of the prefix that every token sees and one behind its last: int64 [2, T]; 0 and 0 without one.

    Counted in the token's row.
    """
    bounds = np.zeros((2, layout.num_rows, layout.row_tokens), dtype=np.int64)
    for row, queries, keys in prefix_blocks(layout):
        bounds[:, row, queries] = np.array([[keys.start], [keys.stop]])
    return bounds.reshape(2, -1)


def refuse_prefixes(layout: PackLayout, what: str) -> None:
    """Refuses a batch whose groups share prefixes, where something knows ranges of tokens alone.

    Raises:
        ValueError: it does; names what can show them.
    """
    if layout.shared_prefix:
        raise ValueError(
            f"{what} says where sequences begin and end, and cannot show several of them one prefix (shared_prefix): "
            "use build_block_mask with FlexAttention, or build_boolean_mask or build_packing_attention_bias"
        )


def refuse_window(layout: PackLayout, window: int | None) -> None:
    """Refuses a window over shared prefixes: distances in the row are not those of positions there.

    Raises:
        ValueError: there are both.
    """
    if layout.shared_prefix and window is not None:
        raise ValueError(
            f"window {window} counts tokens in the row, where a shared prefix may lie far from those who see it: leave "
            "out window, or shared_prefix"
        )
