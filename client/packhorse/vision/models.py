"""Vision-language models of transformers: `media_of` describes the image tensors that a model takes.

An image is represented in a sequence by placeholder tokens, laid out as a grid of (frames, height, width). Owns, for
each model, the keys of its tensors, the grids of its images, and position ids. Leaves putting images into batches to
`packhorse.client.batches`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches import Media
from packhorse.client.batches.row_format import Load

_Tensors = Mapping[str, torch.Tensor]

_LLAVA_DIGITS = 7
"""Decimal digits to which LLaVA-OneVision's processor rounds a side before it cuts it to a whole number."""
_LLAVA_LEAST_RATIO = 1.1
"""The ratio of sides above which LLaVA-OneVision's processor scales tiles down."""


def media_of(config: Any, load: Load | Mapping[str, Load], *, on_error: Literal["fail", "mask"] = "fail") -> Media:
    """Returns the Media of a transformers model: Qwen2-VL to Qwen3-VL, InternVL or LLaVA-OneVision.

    Example:
        >>> from transformers import InternVLConfig
        >>> media = media_of(InternVLConfig(), load=lambda ids: {})
        >>> media.keys, media.grids({"pixel_values": torch.zeros(2, 3, 448, 448)}).tolist()
        (('pixel_values',), [[1, 16, 16], [1, 16, 16]])

    Args:
        config: the model's configuration.
        load: function from a list of sequence ids to {id: tensors}, where tensors are the processor's output for the
            sequence's images, in order. For a mixture a dict, component → such a function.
        on_error: see `Media.on_error`.

    Raises:
        ValueError: the model is of another type.
    """
    model_type = getattr(config, "model_type", None)
    if model_type not in _MODELS:
        raise ValueError(
            f"media_of knows models of the types {', '.join(sorted(_MODELS))}, not {model_type!r}; describe yours as "
            "Media(load=…, image_token_id=…, keys=…, grids=…)"
        )
    tensors = _MODELS[model_type](config)
    return Media(
        load=load,
        image_token_id=config.image_token_id,
        keys=tensors.keys,
        grids=tensors.grids,
        positions=tensors.positions,
        pads=tensors.pads,
        on_error=on_error,
    )


def grid_positions(length: int, starts: NDArray[np.int64], grids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns three position ids for each token, as `get_rope_index` of Qwen's models: int64 [3, length].

    From one token of text to the next, all three grow by 1. Tokens of an image that begins at position p have p plus
    their frame, row and column. The text after an image with height h and width w begins at p + max(h, w).

    Example:
        >>> grid_positions(7, np.array([1]), np.array([[1, 2, 2]])).tolist()
        [[0, 1, 1, 1, 1, 3, 4], [0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4]]

    Args:
        length: length of the sequence, in tokens.
        starts: index of each image's first token: int64 [images], ascending.
        grids: each image's frames, height and width in tokens: int64 [images, 3].
    """
    positions = np.tile(np.arange(length), (3, 1))
    for start, grid in zip(starts.tolist(), grids.tolist(), strict=True):
        end = start + math.prod(grid)
        positions[:, start:end] = positions[:, start : start + 1] + np.indices(grid).reshape(3, -1)
        positions[:, end:] -= end - start - max(grid[1:])
    return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageTensors:
    """The image tensors that a model takes: the fields of `Media` that follow from its configuration."""

    keys: tuple[str, ...]
    """Names of the tensors."""
    grids: Callable[[_Tensors], NDArray[np.int64]]
    """Function from a sequence's tensors to the grid of each image in placeholders: int64 [images, 3]."""
    positions: Callable[[int, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]] | None = None
    """Function from a sequence's length, and the starts and grids of its images, to int64 [3, length]; None if images
    count as text.
    """
    pads: bool = False
    """Whether tensors of different shapes are padded with zeros."""


def _qwen(config: Any) -> _ImageTensors:
    """Returns the image tensors of Qwen2-VL to Qwen3-VL."""
    return _ImageTensors(
        keys=("pixel_values", "image_grid_thw"),
        grids=partial(_qwen_grids, merge_size=config.vision_config.spatial_merge_size),
        positions=grid_positions,
    )


def _qwen_grids(tensors: _Tensors, *, merge_size: int) -> NDArray[np.int64]:
    """Returns the grid of each image in tokens; a token merges merge_size × merge_size patches."""
    patches = tensors["image_grid_thw"].numpy().reshape(-1, 3)
    if len(tensors["pixel_values"]) != patches.prod(1).sum():
        raise ValueError(
            f"pixel_values has {len(tensors['pixel_values'])} patches, but image_grid_thw {patches.tolist()} says "
            f"{patches.prod(1).sum()}"
        )
    return patches // np.array([1, merge_size, merge_size])


def _internvl(config: Any) -> _ImageTensors:
    """Returns the image tensors of InternVL."""
    vision = config.vision_config
    side = int(vision.image_size[0] // vision.patch_size[0] * config.downsample_ratio)
    return _ImageTensors(keys=("pixel_values",), grids=partial(_tile_grids, side=side))


def _tile_grids(tensors: _Tensors, *, side: int) -> NDArray[np.int64]:
    """Returns a square grid for each tile of the images."""
    return np.tile(np.array([1, side, side]), (len(tensors["pixel_values"]), 1))


def _llava_onevision(config: Any) -> _ImageTensors:
    """Returns the image tensors of LLaVA-OneVision."""
    grids = partial(
        _llava_grids,
        tile_pixels=config.vision_config.image_size,
        tile_side=config.vision_config.image_size // config.vision_config.patch_size,
        pinpoints=config.image_grid_pinpoints,
        max_tiles=int(config.vision_aspect_ratio.removeprefix("anyres_max_")),
    )
    keys = ("pixel_values", "image_sizes", "batch_num_images")
    return _ImageTensors(keys=keys, grids=grids, pads=True)  # images have different numbers of tiles


def _llava_grids(
    tensors: _Tensors, *, tile_pixels: int, tile_side: int, pinpoints: list[list[int]], max_tiles: int
) -> NDArray[np.int64]:
    """Returns the placeholders of each image, as a grid of one row: int64 [images, 3].

    An image has tile_side² placeholders for itself, scaled down to a square. If it is the only image of its sequence,
    it also has placeholders for its tiles, laid out as one picture without the padding at its borders; each line of
    placeholders ends in one more. If there are several images, none has tiles, and each takes tile_side² + 1. This is
    the rule of `LlavaOnevisionProcessor`.

    Args:
        tensors: the processor's output for a sequence.
        tile_pixels: side of a tile in pixels.
        tile_side: side of a tile in placeholders.
        pinpoints: sizes in pixels, (height, width), to which an image may be scaled before it is cut into tiles.
        max_tiles: tiles whose placeholders are used at full resolution; more are scaled down to about as many.
    """
    from transformers.image_processing_utils import select_best_resolution

    sizes = tensors["image_sizes"].tolist()
    if tensors["batch_num_images"].tolist() != [len(sizes)]:
        raise ValueError(
            f"batch_num_images must be [{len(sizes)}], the images of the sequence, got "
            f"{tensors['batch_num_images'].tolist()}; give the processor all images of a sequence as one list"
        )
    if len(sizes) > 1:
        return np.tile(np.array([1, 1, tile_side**2 + 1]), (len(sizes), 1))
    height, width = (tile_side * (size // tile_pixels) for size in select_best_resolution(sizes[0], pinpoints))
    height, width = _without_padding(height, width, sizes[0])
    height, width = _scaled_down(height, width, max_tiles * tile_side**2)
    return np.array([[1, 1, tile_side**2 + height * (width + 1)]])


def _without_padding(height: int, width: int, image_size: list[int]) -> tuple[int, int]:
    """Returns the placeholders of an image's tiles, in height and width, less those of its padding.

    The image, of (height, width) in pixels, was padded on two opposite sides to the shape of its tiles.
    """
    own_height, own_width = image_size
    if own_width / own_height > width / height:
        height -= (height - int(round(own_height * (width / own_width), _LLAVA_DIGITS))) // 2 * 2
    else:
        width -= (width - int(round(own_width * (height / own_height), _LLAVA_DIGITS))) // 2 * 2
    return height, width


def _scaled_down(height: int, width: int, max_placeholders: int) -> tuple[int, int]:
    """Returns height and width, scaled down to about `max_placeholders` placeholders if there are clearly more."""
    ratio = math.sqrt(height * width / max_placeholders)
    return (int(height // ratio), int(width // ratio)) if ratio > _LLAVA_LEAST_RATIO else (height, width)


_MODELS: dict[str, Callable[[Any], _ImageTensors]] = {
    "internvl": _internvl,
    "llava_onevision": _llava_onevision,
    "qwen2_5_vl": _qwen,
    "qwen2_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
}
"""`model_type` of a configuration → function from the configuration to the model's image tensors."""
