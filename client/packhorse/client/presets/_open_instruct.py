"""The preset of open-instruct's `finetune.py`.

It is `padding_free_preset`, which is in `presets/transformers`, under another name and without images.
"""

from dataclasses import replace

from packhorse.client.presets.preset import Preset
from packhorse.client.presets.transformers import padding_free_preset


def open_instruct_preset() -> Preset:
    """Makes the preset of open-instruct's `finetune.py`, with the keys of its `TensorDataCollatorWithFlattening`.

    These are the keys of `padding_free_preset()`.
    """
    return replace(
        padding_free_preset(),
        name="open-instruct",
        takes_media=False,
        trainer="finetune.py of open-instruct (August 2026) with --packing; GRPO has rollouts.to_open_instruct",
    )
