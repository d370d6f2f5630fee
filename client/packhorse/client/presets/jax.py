"""The presets of JAX trainers: batches with segment ids, under the keys of Grain or MaxText, as NumPy arrays.

Owns these keys. It does not import JAX, whose input pipelines pass on NumPy arrays. Batches without torch are in
`streams/numpy_batches`.
"""

from functools import partial
from typing import Any, Literal

import numpy as np

from packhorse.client.batches.labels import IGNORE_INDEX
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.preset import Preset

_ENDINGS = {"grain": ("segment_ids", "positions"), "maxtext": ("segmentation", "position")}
"""`names` of `jax_preset` → the endings of the keys of segment ids and of positions."""


def jax_preset(names: Literal["grain", "maxtext"] = "grain") -> Preset:
    """Makes the preset of JAX trainers that pack with segment ids.

    Legend: B rows, L tokens in a row. Keys, all NumPy int32 [B, L], here with Grain's endings: `inputs`, `targets`;
    `inputs_segment_ids`, which are 1, 2, … for the sequences of a row, 0 on padding; `inputs_positions`, 0 on padding;
    `targets_segment_ids`, equal to the inputs' if the target is predicted, else 0, so that `targets_segment_ids != 0`
    is the loss's weight; `targets_positions`, equal to the inputs'. A target that is not predicted is 0.

    These batches are not for seqio's decoders, whose inputs are shifted to the right and which predict a sequence's
    first token too, although their segment ids and positions are the same.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> preset = jax_preset()
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, preset=preset)
        >>> batch = next(iter(dataset))
        >>> batch["inputs_segment_ids"].tolist()
        [[1, 1, 1, 1, 1, 2, 2, 2]]

    Args:
        names: whose keys. `maxtext` has `inputs_segmentation` and `inputs_position`, and the same for `targets_`; its
            preset is called `maxtext`, and that of `grain` is called `jax`.

    Raises:
        ValueError: the names are unknown.
    """
    if names not in _ENDINGS:
        raise ValueError(f"names must be one of {', '.join(_ENDINGS)}; got {names!r}")
    segment_ids, positions = _ENDINGS[names]
    return Preset(
        name="maxtext" if names == "maxtext" else "jax",
        trainer="MaxText (August 2026), instead of its packing and its shift"
        if names == "maxtext"
        else "JAX trainers that read the keys of Grain's packing (0.2.18)",
        shift_labels=True,
        labels="shifted; 0, with segment id 0, on the last token of each sequence, on padding and where not predicted",
        flatten=False,
        has_rows=True,
        padding="tokens as chosen; segment ids, positions and targets 0",
        build=partial(_build, segment_ids=segment_ids, positions=positions),
    )


def _build(batch: PackedBatch, *, segment_ids: str, positions: str) -> dict[str, Any]:
    """Returns the keys of a batch; two of them end with `segment_ids` and two with `positions`."""
    is_token = batch["attention_mask"].numpy()
    labels = batch["labels"].numpy()
    is_predicted = labels != IGNORE_INDEX
    inputs_segment_ids = ((batch["sequence_ids"].numpy() + 1) * is_token).astype(np.int32)
    inputs_positions = (batch["position_ids"].numpy() * is_token).astype(np.int32)
    return {
        "inputs": batch["input_ids"].numpy().astype(np.int32),
        f"inputs_{segment_ids}": inputs_segment_ids,
        f"inputs_{positions}": inputs_positions,
        "targets": np.where(is_predicted, labels, 0).astype(np.int32),
        f"targets_{segment_ids}": np.where(is_predicted, inputs_segment_ids, 0),
        f"targets_{positions}": inputs_positions,
    }
