"""The presets by their names."""

from packhorse.client.presets._open_instruct import open_instruct_preset
from packhorse.client.presets._trl import trl_preset
from packhorse.client.presets.jax import jax_preset
from packhorse.client.presets.llama_factory import llama_factory_preset
from packhorse.client.presets.megatron import megatron_preset
from packhorse.client.presets.megatron_lm import megatron_lm_preset
from packhorse.client.presets.padding_free import padding_free_preset
from packhorse.client.presets.preset import Preset
from packhorse.client.presets.rows import rows_preset
from packhorse.client.presets.torchtune import torchtune_preset

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
)
PRESETS = {preset.name: preset for preset in _ALL}


def get_preset(name: str) -> Preset:
    """Finds a preset, with the options that it has by default.

    Example:
        >>> get_preset("trl").flatten
        True

    Args:
        name: of a preset, as `list_presets` has it.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


def list_presets() -> tuple[Preset, ...]:
    """Returns all presets, in the order of their names; each prints as what it declares.

    Example:
        >>> [preset.name for preset in list_presets()][:4]
        ['jax', 'llama-factory', 'maxtext', 'megatron']
    """
    return tuple(PRESETS[name] for name in sorted(PRESETS))
