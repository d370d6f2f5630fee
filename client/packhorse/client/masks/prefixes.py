"""Shared prefixes in masks: lets sequences see their group's prefix, or refuses that if a kernel cannot express it.

Owns the pairs of a sequence's tokens and its prefix's tokens. Leaves which sequence sees which prefix to
`batches/layout`.

Legend: B rows, L tokens in a row.
"""

from collections.abc import Iterator

import numpy as np
import torch

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks.transfer import transfer


def prefix_blocks(layout: PackLayout) -> Iterator[tuple[int, slice, slice]]:
    """Yields (row, queries, keys) for every sequence that sees a prefix: its range of the row, and the prefix's."""
    seeing = np.flatnonzero(layout.prefixes >= 0)
    prefixes = layout.prefixes[seeing]
    rows, first_queries = np.divmod(layout.starts[seeing], layout.row_tokens)
    first_keys = layout.starts[prefixes] - rows * layout.row_tokens
    columns = (rows, first_queries, first_keys, layout.lengths[seeing], layout.lengths[prefixes])
    for row, query, key, num_queries, num_keys in zip(*(column.tolist() for column in columns), strict=True):
        yield row, slice(query, query + num_queries), slice(key, key + num_keys)


def fill_prefixes(mask: torch.Tensor, layout: PackLayout, value: float) -> None:
    """Writes a value into a mask [B, 1, L, L] in host memory, for each pair of a sequence's and its prefix's tokens."""
    for row, queries, keys in prefix_blocks(layout):
        mask[row, 0, queries, keys] = value


def refuse_prefixes(layout: PackLayout, what: str) -> None:
    """Refuses shared prefixes for a kernel or preset, `what`, that knows only where sequences begin and end.

    Raises:
        ValueError: groups share prefixes; the text names the masks that can show them.
    """
    if layout.shared_prefix:
        raise ValueError(
            f"{what} says where sequences begin and end, and cannot show several of them one prefix (shared_prefix): "
            "use build_block_mask with FlexAttention, or build_boolean_mask or build_packing_attention_bias"
        )


def refuse_window(layout: PackLayout, window: int | None) -> None:
    """Refuses a window together with shared prefixes.

    Distances of tokens in the row, which a window counts, are then not distances of their positions.

    Raises:
        ValueError: there are both.
    """
    if layout.shared_prefix and window is not None:
        raise ValueError(
            f"window {window} counts tokens in the row, where a shared prefix may lie far from those who see it: leave "
            "out window, or shared_prefix"
        )


def prefix_bounds(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns the range of the row that every token sees as its prefix, first token and end: int32 [2, B, L].

    Both are 0 for a token that sees no prefix.
    """
    bounds = np.zeros((2, layout.num_rows, layout.row_tokens), dtype=np.int32)
    for row, queries, keys in prefix_blocks(layout):
        bounds[:, row, queries] = np.array([[keys.start], [keys.stop]])
    (on_device,) = transfer([bounds], device)
    return on_device


def with_prefixes(pairs: torch.Tensor, layout: PackLayout) -> torch.Tensor:
    """Adds the pairs of sequences' and their prefixes' tokens to allowed pairs, bool [B, L, L]: row, query, key."""
    if not layout.shared_prefix:
        return pairs
    firsts, ends = prefix_bounds(layout, pairs.device)[..., None]  # of each query: [B, L, 1]
    keys = torch.arange(layout.row_tokens, dtype=torch.int32, device=pairs.device)
    return pairs | ((keys >= firsts) & (keys < ends))
