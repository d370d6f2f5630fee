"""open-instruct's supervised fine-tuning with `--packing`.

Owns the declaration; leaves the keys to `padding_free`, since open-instruct's collator makes the same ones, and
reinforcement learning (GRPO), whose packs hold responses, masks and advantages, to `rollouts`.
"""

from dataclasses import replace

from packhorse.client.presets.padding_free import padding_free_preset
from packhorse.client.presets.preset import Preset


def open_instruct_preset() -> Preset:
    """Makes the preset of open-instruct's `finetune.py`: what its `TensorDataCollatorWithFlattening` makes.

    The keys are those of `padding_free_preset()`, all of them.
    """
    return replace(
        padding_free_preset(),
        name="open-instruct",
        trainer="finetune.py of open-instruct (August 2026) with --packing; GRPO has rollouts.to_open_instruct",
    )
