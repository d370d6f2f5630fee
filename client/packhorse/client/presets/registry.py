"""The presets by their names."""

from dataclasses import replace
from typing import Literal

from packhorse.client.presets._trl_async import trl_async_preset
from packhorse.client.presets.jax import jax_preset
from packhorse.client.presets.llama_factory import llama_factory_preset
from packhorse.client.presets.megatron import megatron_lm_preset, megatron_preset
from packhorse.client.presets.preset import Preset
from packhorse.client.presets.torchtune import torchtune_preset
from packhorse.client.presets.transformers import padding_free_preset, rows_preset

PresetName = Literal[
    "jax",
    "llama-factory",
    "maxtext",
    "megatron",
    "megatron-lm",
    "open-instruct",
    "padding-free",
    "rows",
    "torchtune",
    "torchtune-0.6",
    "trl",
    "trl_async",
]
"""What `get_preset` knows, for type checkers."""


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


_ALL = (
    jax_preset(),
    jax_preset("maxtext"),
    llama_factory_preset(),
    megatron_preset(),
    megatron_lm_preset(),
    open_instruct_preset(),
    padding_free_preset(),
    rows_preset(),
    torchtune_preset(),
    torchtune_preset(shift_labels=False),
    trl_preset(),
    trl_async_preset(),
)
PRESETS = {preset.name: preset for preset in _ALL}


def get_preset(name: str) -> Preset:
    """Returns the preset of a name, with its default options.

    Example:
        >>> get_preset("trl").flatten
        True

    Args:
        name: a name from `list_presets`.

    Raises:
        ValueError: no preset has this name.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


def list_presets() -> tuple[Preset, ...]:
    """Returns all presets, sorted by name. Printing one shows what it declares.

    Example:
        >>> [preset.name for preset in list_presets()][:4]
        ['jax', 'llama-factory', 'maxtext', 'megatron']
    """
    return tuple(PRESETS[name] for name in sorted(PRESETS))
