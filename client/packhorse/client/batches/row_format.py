"""How rows are filled: `RowFormat`, the options that all batches share, and in it `Separators` and `Media`.

Owns these options and their checks. Leaves filling rows to `batch`, loading images to `_images`, and presets to
`presets/registry`. The plan keeps room for separators with its `extra_tokens`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.topology.checks import quoted

MAX_TOKEN_ID = 2**31 - 1
"""The largest token id that is accepted: no vocabulary is larger, so a greater number is a mistake."""

_FIELDS_FOR_TREES = ("separators", "pad_token_id", "flatten", "shift_labels", "shared_prefix")
"""Fields of `RowFormat` that may be set with `shared_prefix="tree"`; the others may not."""


def check_token_id(name: str, value: Any) -> int:
    """Returns a token id that a user chose, as int.

    Args:
        name: the argument's name, for the message.
        value: the token id.

    Raises:
        ValueError: it is not an integer in [0, 2^31).
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not 0 <= value <= MAX_TOKEN_ID:
        raise ValueError(f"{name} must be an integer in [0, 2^31), got {value!r}; use a token id of your tokenizer")
    return int(value)


def check_total_multiple_of(value: Any) -> None:
    """Checks the option `total_multiple_of`.

    Raises:
        ValueError: it is not an integer of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"total_multiple_of must be an integer of at least 1, got {quoted(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Separators:
    """Tokens put before and after each sequence. By default none, for token files that already have them.

    If a sequence is split or truncated, only its true beginning gets the token before, and only its true end the token
    after, so that a model does not learn that a text ends where a bin did.

    Example:
        >>> Separators.eos_bos(bos_token_id=1, eos_token_id=2).num_tokens  # extra tokens to prepare for
        2
    """

    bos_token_id: int | None = None
    """Token before each sequence. It is never predicted."""
    eos_token_id: int | None = None
    """Token after each sequence. It is predicted."""

    def __post_init__(self) -> None:
        for name in ("bos_token_id", "eos_token_id"):
            token_id = getattr(self, name)
            if token_id is not None:
                check_token_id(name, token_id)

    @classmethod
    def eos_bos(cls, *, bos_token_id: int, eos_token_id: int) -> Self:
        """Returns separators before and after each sequence: `<bos> a b c <eos> <bos> d e <eos>`.

        They need a plan with 2 extra tokens.
        """
        check_token_id("bos_token_id", bos_token_id)  # unlike a field, neither may be None here
        check_token_id("eos_token_id", eos_token_id)
        return cls(bos_token_id=bos_token_id, eos_token_id=eos_token_id)

    @classmethod
    def separator_only(cls, *, separator_token_id: int) -> Self:
        """Returns one separator after each sequence: `a b c <sep> d e <sep>`. It needs a plan with 1 extra token."""
        return cls(eos_token_id=check_token_id("separator_token_id", separator_token_id))

    @property
    def num_tokens(self) -> int:
        """The most tokens added to a sequence.

        The plan's `extra_tokens` must be at least as many, or one less if labels are shifted.
        """
        return (self.bos_token_id is not None) + (self.eos_token_id is not None)

    def leaves_out_last(self, extra_tokens: int) -> bool:
        """Whether rooms of a plan with these `extra_tokens` are one token too short, for each sequence's last token.

        Example:
            >>> Separators().leaves_out_last(-1), Separators.separator_only(separator_token_id=2).leaves_out_last(0)
            (True, True)
        """
        return self.num_tokens == extra_tokens + 1


Load = Callable[[list[int]], Mapping[int, Mapping[str, torch.Tensor]]]
"""A user's function from ids of sequences to {id: tensors of its images}, as the model's processor makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """How to load images, and which tensors a model takes. `media_of` makes it for models of transformers.

    A sequence's tokens hold a placeholder, the image token, for every embedding that its images become. Only the
    sequences of a batch that hold placeholders are loaded, in the process that makes the batch.

    Raises:
        ValueError: a field is out of range.
    """

    load: Load | Mapping[str, Load]
    """Function from a list of ids to {id: tensors}; for a mixture, one for each component with images: {NAME: load}.
    Tensors that are not in `keys` are ignored.
    """
    image_token_id: int
    """The token of a placeholder. It is never predicted."""
    keys: tuple[str, ...]
    """Names of the tensors that the model takes, such as `pixel_values`. A batch has them under the same names, joined
    along dimension 0, in the order of placeholders.
    """
    grids: Callable[[Mapping[str, torch.Tensor]], NDArray[np.int64]]
    """Function from a sequence's tensors to the grid of each image in placeholders: frames, height and width, int64
    [images, 3]. Their product is the number of placeholders.
    """
    positions: Callable[[int, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]] | None = None
    """For a model with three position ids per token: function from a sequence's length, the starts of its images
    [images] and their grids to int64 [3, length]. None if images count as text.
    """
    pads: bool = False
    """Whether tensors of different shapes are padded with zeros at the end, as LLaVA's tiles are."""
    on_error: Literal["fail", "mask"] = "fail"
    """What happens if a sequence's images cannot be loaded or do not fit its placeholders: `fail` raises a MediaError,
    `mask` leaves the sequence out of the loss and logs why.
    """

    def __post_init__(self) -> None:
        check_token_id("image_token_id", self.image_token_id)
        loads = list(self.load.values()) if isinstance(self.load, Mapping) else [self.load]
        if not loads or not all(map(callable, loads)):
            raise ValueError(
                f"load must be a function from ids to {{id: tensors}}, or of a mixture {{NAME: function}}, got "
                f"{quoted(self.load)}"
            )
        if not self.keys or not all(isinstance(key, str) for key in self.keys):
            raise ValueError(f"keys must be names of tensors, such as ('pixel_values',), got {quoted(self.keys)}")
        if self.on_error not in ("fail", "mask"):
            raise ValueError(f"on_error must be 'fail' or 'mask', got {quoted(self.on_error)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """How the rows of a batch are filled: options of `BatchFormat`, `pack_rollouts` and `pack_pairs` alike.

    Example:
        >>> RowFormat(flatten=True, total_multiple_of=16).pad_token_id
        0

    Raises:
        ValueError: a field is out of range.
    """

    separators: Separators = field(default_factory=Separators)
    """Special tokens put around each sequence; the plan must have kept `extra_tokens` for them."""
    pad_token_id: int = 0
    """Token that fills what sequences leave free in rows and rooms, in [0, 2^31). Attention and loss ignore it."""
    flatten: bool | None = None
    """Whether a batch's sequences come end to end in one row without padding; a batch without any sequence is one token
    of padding. None: as the preset says, else False."""
    total_multiple_of: int = 1
    """The multiple of tokens to which a flat batch is padded, once at its end; FP8 needs it (see `alignment_for`). With
    max_seq_len · batch_size all batches have this one size."""
    shift_labels: bool | None = None
    """False for models that shift labels inside (Hugging Face), True for losses that compare the same index. None: as
    the preset says, else False."""
    continue_positions: bool = False
    """Whether position ids of a split sequence's pieces continue from piece to piece; otherwise they restart at 0."""
    shared_prefix: bool | Literal["tree"] = False
    """For a dataset with groups: whether each group's first sequence is a prefix that the others see. Masks made from
    a batch show it to them, and their position ids continue where it ends. "tree": the beginning that sequences of a
    bin share is in the bin once, and batches are `packhorse.rollouts.TreeBatch`es."""
    media: Media | None = None
    """How images are loaded, and which of their tensors the model takes; None for text without images."""

    def __post_init__(self) -> None:
        """Checks every field."""
        if not isinstance(self.separators, Separators):
            raise ValueError(f"separators must be Separators, got {quoted(self.separators)}")
        object.__setattr__(self, "pad_token_id", check_token_id("pad_token_id", self.pad_token_id))
        if self.shared_prefix == "tree":
            self._check_trees()
        elif self.shared_prefix not in (True, False):
            raise ValueError(f"shared_prefix must be True, False or 'tree', got {quoted(self.shared_prefix)}")
        for name in ("flatten", "shift_labels", "continue_positions"):
            if getattr(self, name) not in (None, True, False):  # None leaves it to the preset, or is False
                raise ValueError(f"{name} must be True or False, got {quoted(getattr(self, name))}")
        check_total_multiple_of(self.total_multiple_of)
        if self.media is not None:
            self._check_media(self.media)

    def _check_trees(self) -> None:
        """Refuses options that trees do not have, if they differ from their defaults."""
        if self.shift_labels is False:
            raise ValueError("labels of a tree are for the next token; leave out shift_labels")
        refused = {each.name: each.default for each in fields(RowFormat) if each.name not in _FIELDS_FOR_TREES}
        if any(getattr(self, name) != default for name, default in refused.items()):
            *names, last = sorted(refused)
            raise ValueError(f"shared_prefix='tree' goes without {', '.join(names)} and {last}; leave them out")

    def _check_media(self, media: Media) -> None:
        """Refuses what is no Media, special tokens that equal the image token, and options that change positions."""
        if not isinstance(media, Media):
            raise ValueError(f"media must be Media, such as media_of(model.config, load), got {quoted(media)}")
        others = {"pad_token_id": self.pad_token_id}
        others |= {name: getattr(self.separators, name) for name in ("bos_token_id", "eos_token_id")}
        for name, token_id in others.items():
            if token_id == media.image_token_id:
                raise ValueError(f"{name} must not be the image token {token_id}; give another token of your tokenizer")
        for name in ("continue_positions", "shared_prefix"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} cannot be used with media, whose images have positions of their own; leave it out"
                )
