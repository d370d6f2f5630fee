"""Batches in the form that a training stack expects: its keys, its label shift, its padding rule.

`PackedDataset(preset=…)` takes a preset's name, for the default options, or a preset that one of these functions makes.
"""

from packhorse.client.presets.batch_format import BatchFormat
from packhorse.client.presets.jax import jax_preset
from packhorse.client.presets.llama_factory import llama_factory_preset
from packhorse.client.presets.megatron import megatron_preset
from packhorse.client.presets.megatron_alignment import Alignment, alignment_for
from packhorse.client.presets.megatron_lm import megatron_lm_preset
from packhorse.client.presets.preset import Preset
from packhorse.client.presets.registry import PresetName, get_preset, list_presets
from packhorse.client.presets.torchtune import torchtune_preset
from packhorse.client.presets.transformers import padding_free_preset, rows_preset

__all__ = [
    "Alignment",
    "BatchFormat",
    "Preset",
    "PresetName",
    "alignment_for",
    "get_preset",
    "jax_preset",
    "list_presets",
    "llama_factory_preset",
    "megatron_lm_preset",
    "megatron_preset",
    "padding_free_preset",
    "rows_preset",
    "torchtune_preset",
]
