"""Takes padding out of a batch's tensors, which leaves all sequences end to end, and puts it back.

Owns the indices of the tokens that stay. Leaves the offsets of the sequences to `offsets`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, as_layout
from packhorse.client.masks.transfer import transfer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unpadding:
    """Removes the padding of a batch's tensors, and adds it again, on one device. Legend: B rows, L tokens in a row.

    Make it once for each batch, and use it for every tensor. Gradients pass both ways, and the host never waits.

    Example:
        >>> from packhorse.client import PackLayout
        >>> unpadding = build_unpadding(PackLayout.of_rows([2], [1], 4), "cpu")
        >>> tokens = unpadding.unpad(torch.tensor([[7, 8, 0, 0]]))
        >>> tokens.tolist(), unpadding.pad(tokens).tolist()
        ([7, 8], [[7, 8, 0, 0]])
    """

    num_rows: int
    """Rows of the batch, B."""
    row_tokens: int
    """Tokens in a row, L."""
    num_tokens: int
    """Number of tokens of all sequences, without padding."""
    indices: torch.Tensor
    """Index of each of these tokens among the rows end to end: int32 [num_tokens], ascending."""

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """Returns the tokens [num_tokens, …] of padded rows [B, L, …].

        Raises:
            ValueError: the rows have another shape.
        """
        if padded.shape[:2] != (self.num_rows, self.row_tokens):
            raise ValueError(
                f"the tensor must have shape [{self.num_rows}, {self.row_tokens}, ...], as the layout says; "
                f"got {list(padded.shape)}"
            )
        return padded.flatten(0, 1).index_select(0, self.indices)

    def pad(self, tokens: torch.Tensor, *, fill: float = 0) -> torch.Tensor:
        """Returns rows [B, L, …] of the tokens [num_tokens, …], padded with `fill`.

        Raises:
            ValueError: there are more tokens or fewer.
        """
        if tokens.shape[:1] != (self.num_tokens,):
            raise ValueError(
                f"the tensor must have shape [{self.num_tokens}, ...], as the layout says; got {list(tokens.shape)}"
            )
        rows = tokens.new_full((self.num_rows * self.row_tokens, *tokens.shape[1:]), fill)
        rows = rows.index_copy(0, self.indices.long(), tokens)  # unlike index_select, it takes only int64
        return rows.view(self.num_rows, self.row_tokens, *tokens.shape[1:])


def build_unpadding(where: LayoutLike, device: torch.device | str) -> Unpadding:
    """Returns the `Unpadding` of a batch, made from its offsets.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows([2, 1, 3], [2, 3], 4)  # rows of 2 + 1 and 3 tokens
        >>> build_unpadding(layout, "cpu").indices.tolist()  # all positions but 3 and 7, which are padding
        [0, 1, 2, 4, 5, 6]

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where the tensors are.

    Raises:
        ValueError: there is no layout in `where`.
    """
    layout = as_layout(where)
    # Each token's index without padding, and the tokens of padding before its sequence.
    shifts = np.repeat(layout.starts - layout.cu_seqlens[:-1], layout.lengths)
    (indices,) = transfer([np.arange(layout.num_tokens) + shifts], torch.device(device))
    return Unpadding(
        num_rows=layout.num_rows,
        row_tokens=layout.row_tokens,
        num_tokens=layout.num_tokens,
        indices=indices,
    )
