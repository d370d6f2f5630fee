"""The presets by their names: `get_preset` and `list_presets`.

Owns the list of presets. Each is made in a file beside this one, which the imports name.
"""

from typing import Literal

from packhorse.client.presets._open_instruct import open_instruct_preset
from packhorse.client.presets._trl import trl_preset
from packhorse.client.presets._trl_async import trl_async_preset
from packhorse.client.presets.jax import jax_preset
from packhorse.client.presets.llama_factory import llama_factory_preset
from packhorse.client.presets.megatron import megatron_preset
from packhorse.client.presets.megatron_lm import megatron_lm_preset
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
"""The names that `get_preset` knows, for type checkers."""

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
    torchtune_preset(shift_labels=False),  # torchtune-0.6
    trl_preset(),
    trl_async_preset(),
)
PRESETS = {preset.name: preset for preset in _ALL}
"""Name → preset with its default options."""


def get_preset(name: str) -> Preset:
    """Returns the preset with this name, with its default options.

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
