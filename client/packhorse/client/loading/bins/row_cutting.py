"""Rows cut out of a batch: `cut_rows` makes one row of each bin.

Owns the keys of a row, and which batches have rows. Leaves when rows are made to `bins/rows` and `bins/_rows_ahead`.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.packed_batch import Batch, PackedBatch
from packhorse.client.presets import Preset

_ROW_KEYS = ("input_ids", "labels", "sequence_ids", "position_ids")
"""The keys of PackedBatch that a row has without a preset. There is no `attention_mask`: with one, a model of Hugging
Face would look for padding instead of the bounds of sequences."""


def refuse_whole_batches(preset: Preset | None, *, is_flat: bool) -> None:
    """Refuses batches out of which no rows can be cut.

    Args:
        preset: the batches' preset.
        is_flat: whether a batch lays its bins end to end.

    Raises:
        ValueError: the bins of a batch are end to end, or some of its keys belong to the batch as a whole.
    """
    if is_flat or not (preset is None or preset.has_rows):
        maker = "flatten=True" if preset is None else f"preset {preset.name!r}"
        raise ValueError(f"{maker} makes one batch of many bins, not rows; give the DataLoader collate_fn=bins.collate")


def cut_rows(
    batch: PackedBatch, preset: Preset | None, positions: NDArray[np.int64], *, as_numpy: bool
) -> list[dict[str, Any]]:
    """Returns one row of each bin of a batch, as a dictionary from key to tensor.

    Args:
        batch: a batch with one row for each bin, n bins.
        preset: the preset whose keys the rows get; None for `_ROW_KEYS`, the bin's position, and in a mixture its
            component's index.
        positions: the bins' positions in the epoch, -1 for an empty bin: int64 [n].
        as_numpy: whether a row is a plain dict of arrays, instead of a Batch of tensors.
    """
    columns: dict[str, Any]
    if preset is None:
        columns = {name: batch[name] for name in _ROW_KEYS} | {"position": torch.tensor(positions)}
        if "bin_component_ids" in batch:
            columns["component_id"] = batch["bin_component_ids"]
    else:
        columns = preset.convert(batch)
    as_row: type[dict[str, Any]] = Batch
    if as_numpy:
        columns = {name: [np.asarray(item) for item in column] for name, column in columns.items()}
        as_row = dict  # JAX and Grain look into plain dicts only
    return [as_row({name: column[i] for name, column in columns.items()}) for i in range(len(positions))]
