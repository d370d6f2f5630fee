"""`Band`: which pairs of a segment's tokens see each other, as the distances that `causal` and `window` allow.

A segment is a sequence, or a range of padding (`PackLayout.segments`). Owns this rule inside a segment. Leaves pairs of
a sequence and its prefix to `prefixes`.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The distances query − key, in tokens, at which attention is allowed: a range that holds 0, a token itself."""

    least: int | None
    """Smallest distance, at most 0; None if tokens see everything after them."""
    most: int | None
    """Largest distance, at least 0; None if tokens see everything before them."""

    @classmethod
    def of(cls, *, causal: bool, window: int | None) -> Self:
        """Returns the band of a mask's options.

        Args:
            causal: whether a token sees only itself and earlier tokens.
            window: how far a token sees on either side, counting itself (|query − key| < window), as in Hugging Face's
                `sliding_window`; None for no limit.

        Raises:
            ValueError: the window is below 1.
        """
        if window is not None and (not isinstance(window, Integral) or window < 1):
            raise ValueError(f"window must be at least 1, the token itself, or None for no window; got {window!r}")
        most = None if window is None else window - 1
        least = None if most is None else -most
        return cls(least=0 if causal else least, most=most)

    @property
    def is_everything(self) -> bool:
        """Whether every distance is allowed."""
        return self.least is None and self.most is None

    def transposed(self) -> "Band":
        """Returns the band of the same pairs with query and key exchanged."""
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


def pairs_of_equals(labels: torch.Tensor, band: Band) -> torch.Tensor:
    """Returns the allowed pairs of a row's tokens: those with equal labels and an allowed distance.

    Legend: B rows, L tokens in a row.

    Args:
        labels: a label for each token: integers [B, L].
        band: the allowed distances.

    Returns:
        bool [B, L, L]: row, query, key.
    """
    # tril_(k) keeps pairs with key − query ≤ k, so distances query − key ≥ −k; triu_(k) keeps those ≤ −k.
    pairs = labels[:, :, None] == labels[:, None, :]
    if band.least is not None:
        pairs.tril_(-band.least)
    if band.most is not None:
        pairs.triu_(-band.most)
    return pairs
