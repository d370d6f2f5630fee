"""Which distances a token looks over: causal, bidirectional, sliding window.

Owns what `causal` and `window` mean, once for all masks; leaves segments, inside which it applies, to `layout`.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Distances query − key at which attention is allowed; 0, a token itself, is always among them."""

    least: int | None
    """Smallest distance, at most 0; None where tokens see all that comes after them."""
    most: int | None
    """Largest distance, at least 0; None where tokens see all that came before them."""

    @classmethod
    def of(cls, *, causal: bool, window: int | None) -> Self:
        """Reads what callers say.

        Args:
            causal: whether a token sees none after it.
            window: tokens that a token sees on either side, itself included, as in Hugging Face's `sliding_window`:
                |query − key| < window. None for all.

        Raises:
            ValueError: the window holds not even the token itself.
        """
        if window is not None and (not isinstance(window, Integral) or window < 1):
            raise ValueError(f"window must be at least 1, the token itself, or None for no window; got {window!r}")
        reach = None if window is None else window - 1
        return cls(least=0 if causal else None if reach is None else -reach, most=reach)

    @property
    def is_everything(self) -> bool:
        """Whether no distance is refused."""
        return self.least is None and self.most is None

    def transposed(self) -> "Band":
        """The same pairs, with the roles of query and key exchanged."""
        return Band(
            least=None if self.most is None else -self.most,
            most=None if self.least is None else -self.least,
        )

    def allows(self, distances: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each distance query − key is allowed."""
        allowed = np.ones(distances.shape, dtype=np.bool_)
        if self.least is not None:
            allowed &= distances >= self.least
        if self.most is not None:
            allowed &= distances <= self.most
        return allowed
