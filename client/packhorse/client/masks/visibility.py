"""Which tokens see each other, and what the layout says of them, brought to a device without waiting for it.

Owns the rules for all masks (the distances that `causal` and `window` allow, and the prefixes that groups share),
transfers, and the per-token tensors that follow from them. Leaves offsets, segments, and which sequence has which
prefix to `batches/layout`.
"""

from collections.abc import Iterator, Sequence
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
    """Smallest distance, at most 0; None if tokens see everything after them."""
    most: int | None
    """Largest distance, at least 0; None if tokens see everything before them."""

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


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Starts a transfer; to a GPU from pinned memory, so that the host need not wait for its end."""
    is_to_gpu = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_to_gpu else tensor).to(device, non_blocking=is_to_gpu)


def transfer(arrays: Sequence[NDArray[np.integer]], device: torch.device) -> list[torch.Tensor]:
    """Brings small arrays to a device in one transfer.

    Returns:
        int32 tensors with the arrays' shapes, in one piece of memory that nothing else uses.
    """
    sizes = [array.size for array in arrays]
    is_gpu = device.type == "cuda"
    host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=is_gpu)
    for part, array in zip(torch.split(host, sizes), arrays, strict=True):
        part.numpy()[:] = array.reshape(-1)
    parts = torch.split(host.to(device, non_blocking=is_gpu), sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def segment_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns every token's index into `layout.segments`: int32 [B, L]; no two rows share one."""
    lengths = np.diff(layout.segments)
    (index,) = transfer([np.repeat(np.arange(len(lengths)), lengths)], device)
    return index.view(layout.num_rows, layout.row_tokens)


def sequence_index(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns i + 1 for every token of sequence i and the padding after it, and 0 before the first: int32 [T]."""
    rooms = np.diff(layout.cu_seqlens_padded, prepend=0)
    (index,) = transfer([np.repeat(np.arange(len(rooms)), rooms)], device)
    return index


def token_labels(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns 1, 2, 3, … for the sequences of each row, and 0 for padding of either kind: int32 [B, L]."""
    num_tokens = layout.num_rows * layout.row_tokens
    # Padding, sequence, padding, sequence, …, padding: any of them may be empty.
    bounds = np.stack([layout.starts, layout.starts + layout.lengths], axis=1).reshape(-1)
    rests = layout.row_ends + np.arange(layout.num_rows)
    of_bounds = np.zeros(len(bounds) + 1, dtype=np.int32)
    of_bounds[1::2] = np.delete(layout.extent_labels, rests) + 1
    (labels,) = transfer([np.repeat(of_bounds, np.diff(bounds, prepend=0, append=num_tokens))], device)
    return labels.view(layout.num_rows, layout.row_tokens)


def prefix_bounds(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Returns the prefix that every token sees, as its first token in the row and its end: int32 [2, B, L].

    Both are 0 for a token that sees none.
    """
    bounds = np.zeros((2, layout.num_rows, layout.row_tokens), dtype=np.int32)
    for row, queries, keys in prefix_blocks(layout):
        bounds[:, row, queries] = np.array([[keys.start], [keys.stop]])
    (on_device,) = transfer([bounds], device)
    return on_device


def with_prefixes(pairs: torch.Tensor, layout: PackLayout) -> torch.Tensor:
    """Adds the pairs of sequences and the prefixes that they see: bool [B, L, L], query, then key."""
    if not layout.shared_prefix:
        return pairs
    firsts, ends = prefix_bounds(layout, pairs.device)[..., None]
    keys = torch.arange(layout.row_tokens, dtype=torch.int32, device=pairs.device)
    return pairs | ((keys >= firsts) & (keys < ends))


def pairs_of_equals(labels: torch.Tensor, band: Band) -> torch.Tensor:
    """Returns which positions of a row have equal labels, integers [B, L], at an allowed distance.

    Returns:
        bool [B, L, L]: query, then key.
    """
    pairs = labels[:, :, None] == labels[:, None, :]
    if band.least is not None:
        pairs.tril_(-band.least)
    if band.most is not None:
        pairs.triu_(-band.most)
    return pairs
