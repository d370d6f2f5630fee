"""The preset of TRL's `SFTTrainer`.

Owns what differs from `padding_free_preset`, from which it derives.
"""

from dataclasses import replace

from packhorse.client.presets.preset import Preset
from packhorse.client.presets.transformers import padding_free_preset


def trl_preset() -> Preset:
    """Makes the preset of `SFTTrainer`: what its collator makes with `padding_free=True`.

    The keys are those of `padding_free_preset()`. TRL itself leaves out of the loss what has position 0,
    which is the first token of each sequence. Hand batches over behind the collator, by a trainer whose
    `get_train_dataloader` returns the loader of a PackedDataset; TRL would not pack or collate them again.
    """
    return replace(
        padding_free_preset(),
        name="trl",
        takes_media=False,
        trainer="SFTTrainer of TRL (1.16), as its collator with padding_free=True feeds it",
    )
