"""Batches in the form that a training stack expects: its keys, its label shift, its padding rule."""

from packhorse.client.presets.preset import Preset
from packhorse.client.presets.registry import get_preset, list_presets

__all__ = ["Preset", "get_preset", "list_presets"]
