"""The preset of TRL's asynchronous GRPO: rows are trees, in which a common prefix of sequences is written once.

Owns the declaration. Leaves keys and trees to `packhorse.rollouts`, which makes them of rollouts too.
"""

from typing import Any

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.presets.preset import Preset
from packhorse.shelf import from_shelf


def trl_async_preset() -> Preset:
    """Makes the preset of TRL's asynchronous GRPO (1.16), whose model takes trees.

    Legend: B rows, N distinct tokens in the longest row. Keys: those of `packhorse.rollouts.tree_row`, each padded to
    the longest row; `attention_mask` int64 [B, N]; and the numbers of trained and of distinct tokens in the batch, to
    be summed over ranks. The trainer must add the policy's values (`old_log_probs`, `advantages`); for rollouts
    `to_trl_async` adds them.

    Example:
        >>> trl_async_preset().shift_labels
        True
    """
    return Preset(
        name="trl_async",
        trainer="AsyncGRPOTrainer of TRL (1.16), as its collator feeds it",
        shift_labels=True,
        labels="shifted; -100 on what is not trained, on the last token of each sequence and on padding",
        flatten=False,
        folds=True,
        padding="-1 in indices and offsets, labels -100, positions 0",
        build=_build,
    )


def _build(batch: PackedBatch) -> dict[str, Any]:
    """Returns the keys of a batch, by `trl_async_rows` of `packhorse.rollouts`, which `from_shelf` imports."""
    keys: dict[str, Any] = from_shelf("trl_async")(batch)
    return keys
