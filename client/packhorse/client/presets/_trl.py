"""The preset of TRL's `SFTTrainer`.

It is `padding_free_preset`, which is in `presets/transformers`, under another name and without images.
"""

from dataclasses import replace

from packhorse.client.presets.preset import Preset
from packhorse.client.presets.transformers import padding_free_preset


def trl_preset() -> Preset:
    """Makes the preset of `SFTTrainer`, with the keys that its collator makes with `padding_free=True`.

    These are the keys of `padding_free_preset()`. TRL itself leaves tokens with position 0 out of the loss, which are
    the first tokens of sequences. Batches must bypass TRL's collator: let the trainer's `get_train_dataloader` return
    the loader of a PackedDataset. TRL then does not pack or collate them again.
    """
    return replace(
        padding_free_preset(),
        name="trl",
        takes_media=False,
        trainer="SFTTrainer of TRL (1.16), as its collator with padding_free=True feeds it",
    )
