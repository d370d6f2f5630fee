"""The presets by their names."""

from packhorse.client.presets.preset import Preset

_ALL: tuple[Preset, ...] = ()
PRESETS = {preset.name: preset for preset in _ALL}


def get_preset(name: str) -> Preset:
    """Finds a preset.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


def list_presets() -> tuple[Preset, ...]:
    """Returns all presets, in the order of their names."""
    return tuple(PRESETS[name] for name in sorted(PRESETS))
