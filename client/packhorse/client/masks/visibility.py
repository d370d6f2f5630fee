"""Which tokens see each other: the distances that `causal` and `window` allow, and the prefixes that groups share.

Owns both rules for all masks; leaves segments, and which sequence has which prefix, to `batches/layout`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Distances query − key at which attention is allowed; 0, a token itself, is always among them."""

    least: int | None
    """Smallest distance, at most 0; None where tokens see everything after them."""
    most: int | None
    """Largest distance, at least 0; None where tokens see everything before them."""

    @classmethod
    def of(cls, *, causal: bool, window: int | None) -> Self:
        """Translates the options of a mask.

        Args:
            causal: whether a token sees only itself and earlier tokens.
            window: tokens that a token sees on either side, itself included, as in Hugging Face's `sliding_window`:
                |query − key| < window. None for all.

        Raises:
            ValueError: the window does not even hold the token itself.
        """
        if window is not None and (not isinstance(window, Integral) or window < 1):
            raise ValueError(f"window must be at least 1, the token itself, or None for no window; got {window!r}")
        reach = None if window is None else window - 1
        return cls(least=0 if causal else None if reach is None else -reach, most=reach)

    @property
    def is_everything(self) -> bool:
        """Whether every distance is allowed."""
        return self.least is None and self.most is None

    def transposed(self) -> "Band":
        """Returns the same pairs, with query and key exchanged."""
        return Band(
            least=None if self.most is None else -self.most,
            most=None if self.least is None else -self.least,
        )

    def allows(self, distances: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether each distance query − key is allowed."""
        allowed = np.ones(distances.shape, dtype=np.bool_)
        if self.least is not None:
            allowed &= distances >= self.least
        if self.most is not None:
            allowed &= distances <= self.most
        return allowed


def prefix_blocks(layout: PackLayout) -> Iterator[tuple[int, slice, slice]]:
    """Yields (row, queries, keys) of every sequence that sees a prefix."""
    seeing = np.flatnonzero(layout.prefixes >= 0)
    prefixes = layout.prefixes[seeing]
    rows, queries = np.divmod(layout.starts[seeing], layout.row_tokens)
    keys = layout.starts[prefixes] - rows * layout.row_tokens
    columns = (rows, queries, keys, layout.lengths[seeing], layout.lengths[prefixes])
    for row, query, key, num_queries, num_keys in zip(*(column.tolist() for column in columns), strict=True):
        yield row, slice(query, query + num_queries), slice(key, key + num_keys)


def fill_prefixes(mask: torch.Tensor, layout: PackLayout, value: float) -> None:
    """Writes one value wherever a sequence sees a prefix, into a mask [B, 1, L, L] in host memory."""
    for row, queries, keys in prefix_blocks(layout):
        mask[row, 0, queries, keys] = value


def refuse_prefixes(layout: PackLayout, what: str) -> None:
    """Refuses shared prefixes for a kernel or preset that only knows ranges of tokens.

    Raises:
        ValueError: groups share prefixes; names the masks that show them.
    """
    if layout.shared_prefix:
        raise ValueError(
            f"{what} says where sequences begin and end, and cannot show several of them one prefix (shared_prefix): "
            "use build_block_mask with FlexAttention, or build_boolean_mask or build_packing_attention_bias"
        )


def refuse_window(layout: PackLayout, window: int | None) -> None:
    """Refuses a window over shared prefixes, where distances in the row are not distances of positions.

    Raises:
        ValueError: there are both.
    """
    if layout.shared_prefix and window is not None:
        raise ValueError(
            f"window {window} counts tokens in the row, where a shared prefix may lie far from those who see it: leave "
            "out window, or shared_prefix"
        )
