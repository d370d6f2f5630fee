"""`RowFormat`: how rows are filled, for `BatchAssembler` and for `BatchFormat`, which share these options.

Owns the options and their checks; leaves filling the rows to `batch`, and presets to `presets/batch_format`.
"""

from dataclasses import dataclass, field

from packhorse.client.batches.separators import Separators, check_token_id
from packhorse.client.transport.requests import shortened


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """How the rows of a batch are filled.

    Raises:
        ValueError: a field is out of range.
    """

    separators: Separators = field(default_factory=Separators)
    """Special tokens put around each sequence; the plan must have kept `extra_tokens` for them."""
    pad_token_id: int = 0
    """Token that fills a bin's free end, in [0, 2^31). Attention and loss never look at it."""
    flatten: bool | None = None
    """Whether a batch's sequences come end to end in one row without padding; a batch without any sequence is one token
    of padding. None: as the preset wants it, else False."""
    shift_labels: bool | None = None
    """False for models that shift labels inside (Hugging Face), True for losses that compare the same index. None: as
    the preset wants it, else False."""
    continue_positions: bool = False
    """Whether position ids of a split sequence's pieces go on from piece to piece; otherwise they restart at 0."""
    shared_prefix: bool = False
    """Of a dataset with groups, whether each group's first sequence is a prefix that the others see: masks built of a
    batch show it to them, and their position ids go on where it ends."""

    def __post_init__(self) -> None:
        """Checks every field."""
        if not isinstance(self.separators, Separators):
            raise ValueError(f"separators must be Separators, got {shortened(self.separators)}")
        object.__setattr__(self, "pad_token_id", check_token_id("pad_token_id", self.pad_token_id))
        for name in ("flatten", "shift_labels", "continue_positions", "shared_prefix"):
            if getattr(self, name) not in (None, True, False):
                raise ValueError(f"{name} must be True or False, got {shortened(getattr(self, name))}")
