"""A mixture's components, as batches know them.

Owns the facts of one; leaves which sequence is of which to the blocks.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MixedComponent:
    """One of the components that a batch's sequences may be of."""

    name: str
    """Its name."""
    longest: int | None = None
    """Tokens that its longer sequences were cut to, truncated at their end or split; None where none was."""
