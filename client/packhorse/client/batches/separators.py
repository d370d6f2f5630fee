"""Special tokens that a batch puts around its sequences.

Owns which tokens and where, and what such a token's id may be; leaves the room for them to the plan
(`prepare --extra-tokens`) and the writing to `batch`.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

MAX_TOKEN_ID = 2**31 - 1
"""No vocabulary is larger; what is greater is a mistake."""


def check_token_id(name: str, value: Any) -> int:
    """Returns a token id that a user chose, as int.

    Args:
        name: of the argument, for the message.
        value: what was given.

    Raises:
        ValueError: it is no integer in [0, 2^31).
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not 0 <= value <= MAX_TOKEN_ID:
        raise ValueError(f"{name} must be an integer in [0, 2^31), got {value!r}; use a token id of your tokenizer")
    return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Separators:
    """Tokens put before and after each sequence; none by default, for token files that hold them already.

    Of a sequence that is split or truncated only what has its true beginning gets the token before, and only what has
    its true end the token after: nobody should learn that a text ends where a bin did.

    Example:
        >>> Separators.eos_bos(bos_token_id=1, eos_token_id=2).num_tokens  # extra tokens to prepare for
        2
    """

    bos_token_id: int | None = None
    """Put before each sequence. It is never predicted."""
    eos_token_id: int | None = None
    """Put after each sequence, which predicts it."""

    def __post_init__(self) -> None:
        for name in ("bos_token_id", "eos_token_id"):
            token_id = getattr(self, name)
            if token_id is not None:
                check_token_id(name, token_id)

    @classmethod
    def eos_bos(cls, *, bos_token_id: int, eos_token_id: int) -> Self:
        """Both: `<bos> a b c <eos> <bos> d e <eos>`; needs a plan with 2 extra tokens."""
        check_token_id("bos_token_id", bos_token_id)
        check_token_id("eos_token_id", eos_token_id)
        return cls(bos_token_id=bos_token_id, eos_token_id=eos_token_id)

    @classmethod
    def separator_only(cls, *, separator_token_id: int) -> Self:
        """One behind each sequence: `a b c <sep> d e <sep>`; needs a plan with 1 extra token."""
        return cls(eos_token_id=check_token_id("separator_token_id", separator_token_id))

    @property
    def num_tokens(self) -> int:
        """The most tokens added to a sequence; the plan's `extra_tokens` must be at least as many."""
        return (self.bos_token_id is not None) + (self.eos_token_id is not None)
