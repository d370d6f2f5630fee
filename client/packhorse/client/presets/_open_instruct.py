"""The preset of open-instruct's `finetune.py`.

Owns what differs from `padding_free_preset`, from which it derives.
"""

from dataclasses import replace

from packhorse.client.presets.preset import Preset
from packhorse.client.presets.transformers import padding_free_preset


def open_instruct_preset() -> Preset:
    """Makes the preset of open-instruct's `finetune.py`: what its `TensorDataCollatorWithFlattening` makes.

    The keys are those of `padding_free_preset()`.
    """
    return replace(
        padding_free_preset(),
        name="open-instruct",
        takes_media=False,
        trainer="finetune.py of open-instruct (August 2026) with --packing; GRPO has rollouts.to_open_instruct",
    )
