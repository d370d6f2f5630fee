"""Taking padding out of tensors, and putting it back.

Owns the way between [B, L, …] and the tokens of all sequences end to end, which is the order of `cu_seqlens`; leaves
where sequences lie to `layout`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout, as_layout
from packhorse.client.masks.on_device import transfer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unpadding:
    """The way between padded rows and their tokens, on one device. Legend: B rows, L tokens in a row.

    Make it once a batch, and use it for every tensor. Gradients pass both ways, and no device is waited for.

    Example:
        >>> unpadding = build_unpadding(PackLayout.of_rows(np.array([2]), np.array([1]), 4), "cpu")
        >>> tokens = unpadding.unpad(torch.tensor([[7, 8, 0, 0]]))
        >>> tokens.tolist(), unpadding.pad(tokens).tolist()
        ([7, 8], [[7, 8, 0, 0]])
    """

    num_rows: int
    """B."""
    row_tokens: int
    """L."""
    num_tokens: int
    """Tokens of all sequences, padding left out."""
    indices: torch.Tensor
    """Where each token lies in the rows end to end: int32 [num_tokens], ascending."""

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """Takes padding out.

        Args:
            padded: [B, L, …].

        Returns:
            [num_tokens, …].

        Raises:
            ValueError: it has other rows.
        """
        if padded.shape[:2] != (self.num_rows, self.row_tokens):
            raise ValueError(
                f"the tensor must have shape [{self.num_rows}, {self.row_tokens}, ...], as the layout says; "
                f"got {list(padded.shape)}"
            )
        return padded.flatten(0, 1).index_select(0, self.indices)

    def pad(self, tokens: torch.Tensor, *, fill: float = 0) -> torch.Tensor:
        """Puts padding back.

        Args:
            tokens: [num_tokens, …].
            fill: value of padding.

        Returns:
            [B, L, …].

        Raises:
            ValueError: there are more tokens or fewer.
        """
        if tokens.shape[:1] != (self.num_tokens,):
            raise ValueError(
                f"the tensor must have shape [{self.num_tokens}, ...], as the layout says; got {list(tokens.shape)}"
            )
        rows = tokens.new_full((self.num_rows * self.row_tokens, *tokens.shape[1:]), fill)
        rows = rows.index_copy(0, self.indices.long(), tokens)
        return rows.view(self.num_rows, self.row_tokens, *tokens.shape[1:])


def build_unpadding(
    where: PackLayout | Mapping[str, Any] | NDArray[np.integer] | torch.Tensor, device: torch.device | str
) -> Unpadding:
    """Finds the tokens of a batch, from its offsets.

    Example:
        >>> layout = PackLayout.of_rows(np.array([2, 1, 3]), np.array([2, 3]), 4)  # rows of 2 + 1 and 3 tokens
        >>> build_unpadding(layout, "cpu").indices.tolist()  # all positions but 3 and 7, which are padding
        [0, 1, 2, 4, 5, 6]

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where the tensors are.

    Raises:
        ValueError: there is no layout in `where`.
    """
    layout = as_layout(where)
    shifts = np.repeat(layout.starts - layout.cu_seqlens[:-1], layout.lengths)
    (indices,) = transfer([np.arange(layout.num_tokens) + shifts], torch.device(device))
    return Unpadding(
        num_rows=layout.num_rows,
        row_tokens=layout.row_tokens,
        num_tokens=layout.num_tokens,
        indices=indices,
    )
