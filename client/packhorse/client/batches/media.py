"""Where the images of a batch lie: `MediaLayout`; and `MediaError`, for images that fail.

Leaves what a model takes to `row_format` (`Media`), and loading images to `_images`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.saved import reduced


class MediaError(ValueError):
    """A sequence's images cannot be loaded, or do not fit its placeholders."""


@dataclass(eq=False)  # not frozen: Lightning walks through batches, and refuses dataclasses that are
class MediaLayout:
    """Where the images of a batch lie, in the order of their placeholders; in host memory.

    Legend: m images, T tokens of all rows end to end. For InternVL, an image is a tile.

    Example:
        >>> import torch
        >>> from packhorse.vision import media_of
        >>> from packhorse.client import BatchAssembler, BinBlock
        >>> from packhorse.client.sources import IndexableSource
        >>> # 1 · 2 · 4 patches; the model makes a placeholder of 2 · 2.
        >>> image = {"pixel_values": torch.zeros(8, 6), "image_grid_thw": torch.tensor([[1, 2, 4]])}  # 2 placeholders
        >>> load = lambda ids: {sequence_id: image for sequence_id in ids}
        >>> from types import SimpleNamespace as Config  # what a model's config has
        >>> config = Config(model_type="qwen3_vl", image_token_id=9, vision_config=Config(spatial_merge_size=2))
        >>> block = BinBlock(
        ...     ids=np.array([5, 6]), lengths=np.array([2, 4]), bin_ends=np.array([2]), positions=np.array([0])
        ... )
        >>> source = IndexableSource({5: [1, 2], 6: [3, 9, 9, 4]})
        >>> batch = BatchAssembler(max_seq_len=6, media=media_of(config, load)).assemble(block, source)
        >>> batch["media"].ids.tolist(), batch["media"].starts.tolist(), batch["media"].counts.tolist()
        ([6], [3], [2])
        >>> batch["position_ids"][:, 0].tolist()  # of text, then frames, heights and widths
        [[0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 1, 3], [0, 1, 0, 1, 1, 3], [0, 1, 0, 1, 2, 3]]
        >>> batch["labels"].tolist()
        [[-100, 2, -100, -100, -100, 4]]
    """

    sequences: NDArray[np.int64]
    """Index in the batch of every image's sequence: int64 [m]."""
    ids: NDArray[np.int64]
    """Id of every image's sequence: int64 [m]."""
    starts: NDArray[np.int64]
    """Index among the T tokens of every image's first placeholder: int64 [m]."""
    counts: NDArray[np.int64]
    """Number of every image's placeholders, which are adjacent: int64 [m]."""
    grids: NDArray[np.int64]
    """Frames, height and width of every image, in placeholders: int64 [m, 3]."""
    masked_ids: NDArray[np.int64]
    """Ids of the sequences that `Media.on_error` left out of the loss because their images failed: int64."""
    keys: list[str]
    """Keys of the batch's image tensors; empty if it has no image."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced(self)
