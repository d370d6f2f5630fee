"""`BatchFormat`: the form of a batch, for every dataset and loader.

Owns the options that only datasets have (preset, loss mask, component rows), and checks a preset against the other
options. Leaves the options that rows have everywhere to `batches/row_format`, and presets to `presets/registry`.
"""

from dataclasses import dataclass, fields, replace
from math import lcm
from typing import Any

from packhorse.client.batches.row_format import RowFormat
from packhorse.client.presets.preset import Preset
from packhorse.client.presets.registry import PresetName, get_preset
from packhorse.tokens.loss_mask import AUTO
from packhorse.topology.checks import quoted


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFormat(RowFormat):
    """How a batch looks: its keys, its rows, its labels and its positions.

    Example:
        >>> BatchFormat(preset="padding-free").is_flat
        True

    Raises:
        ValueError: a field is out of range, or contradicts the preset.
    """

    preset: Preset | PresetName | None = None
    """Name of a preset, or a Preset: the keys and conventions of a training stack. None for PackedBatch's own."""
    loss_mask: Any = AUTO
    """Source with the same ids and lengths as `tokens`, which holds 1 or True for tokens to predict and 0 for others.
    "auto" takes the mask beside a token file (`X.loss_mask.idx` beside `X.idx`), if there is one. None predicts every
    token.
    """
    component_rows: bool = False
    """For a mixture that joins k short bins into a long one: whether a row is a short bin, so that B bins of L tokens
    have the shape [B·k, L / k]. If a batch has components of several lengths, the row length is their least common
    multiple.
    """

    def __post_init__(self) -> None:
        """Looks up the preset and checks every field."""
        RowFormat.__post_init__(self)  # super() would fail: with slots=True, the dataclass is another class
        preset = get_preset(self.preset) if isinstance(self.preset, str) else self.preset
        if self.component_rows not in (True, False):
            raise ValueError(f"component_rows must be True or False, got {quoted(self.component_rows)}")
        if preset is not None:
            if not isinstance(preset, Preset):
                raise ValueError(f"preset must be a Preset, got {quoted(preset)}")
            self._check_preset(preset)
            if self.total_multiple_of > 1:
                preset = replace(preset, total_multiple_of=lcm(preset.total_multiple_of, self.total_multiple_of))
            object.__setattr__(self, "preset", preset)
        if self.total_multiple_of > 1 and not self.is_flat:
            raise ValueError(
                "total_multiple_of is for flat batches; leave it out, since rows have max_seq_len tokens each, or take "
                "flatten=True or a preset that is flat"
            )

    def rows(self) -> dict[str, Any]:
        """Returns the fields of `RowFormat` by name, with the preset's own `flatten`, label shift and multiple."""
        own = {each.name: getattr(self, each.name) for each in fields(RowFormat)}
        declares = preset_of(self) or self
        return own | {
            "flatten": self.is_flat,
            "shift_labels": self.shifts_labels,
            "total_multiple_of": declares.total_multiple_of,
        }

    @property
    def is_flat(self) -> bool:
        """Whether batches are flat: as the preset declares, or without a preset `flatten`."""
        preset = preset_of(self)
        return bool(self.flatten) if preset is None else preset.flatten

    @property
    def shifts_labels(self) -> bool:
        """Whether labels are shifted: as the preset declares; without a preset `shift_labels`, or True for trees."""
        if (preset := preset_of(self)) is not None:
            return preset.shift_labels
        return self.shared_prefix == "tree" or bool(self.shift_labels)

    def _check_preset(self, preset: Preset) -> None:
        """Refuses options that contradict the preset, or that its training stack does not support."""
        for name in ("flatten", "shift_labels"):
            wanted, declared = getattr(self, name), getattr(preset, name)
            if wanted not in (None, declared):
                raise ValueError(
                    f"{name}={wanted} contradicts preset {preset.name!r}, which is {name}={declared}: {preset.trainer}"
                )
        if self.media is not None:
            preset.refuse_media()
        if self.shared_prefix == "tree":
            raise ValueError(
                f"shared_prefix='tree' goes without a preset: {preset.trainer} takes no tree; leave the preset out, or "
                "take preset 'trl_async', whose batches are trees"
            )
        if self.shared_prefix:
            raise ValueError(
                f"shared_prefix goes without a preset: {preset.trainer} would not see prefixes; take the batch's own "
                "keys and give the model build_block_mask or build_packing_attention_bias of the batch"
            )


def preset_of(form: BatchFormat) -> Preset | None:
    """Returns the preset of a form, which has looked it up if it was a name; None for PackedBatch's own keys.

    Example:
        >>> preset_of(BatchFormat(preset="trl")).name
        'trl'
    """
    return form.preset if isinstance(form.preset, Preset) else None
