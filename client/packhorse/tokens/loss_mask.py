"""Which loss mask belongs to tokens: the one that the user gives, or the one that lies beside their file.

Owns that choice, the check that a mask file belongs to these tokens, and the warnings if there is no mask. Leaves the
names of mask files to `packhorse.formats.loss_mask`, and applying a mask to `packhorse.client.batches`.
"""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from packhorse.formats.arrays import CHUNK_ELEMENTS
from packhorse.formats.loss_mask import tokens_of_mask
from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.choose import as_token_source
from packhorse.tokens.mixture import MixtureSource
from packhorse.tokens.token_files import TokenFileSource

AUTO: Final = "auto"
"""Value of `loss_mask` that means: the mask beside the token file, if there is one."""


def loss_mask_of(tokens: TokenSource, loss_mask: Any = AUTO) -> TokenSource | None:
    """Returns the loss mask of tokens; None if every token is predicted.

    Args:
        tokens: the tokens that the mask is for.
        loss_mask: `AUTO`, None for no mask, or what `as_token_source` takes. For a mixture also masks by component; a
            component that is not named takes the mask beside its tokens.

    Raises:
        TokenSourceError: the mask belongs to other tokens; only one of the two is given by component; or the tokens
            are a mask.
    """
    if isinstance(tokens, MixtureSource):
        return _of_mixture(tokens, loss_mask)
    if isinstance(tokens, TokenFileSource) and (prefix := tokens_of_mask(tokens.where)):
        raise TokenSourceError(
            f"{tokens.where} is a loss mask, not tokens: give {prefix}.idx as tokens, and the mask beside it is used"
        )
    if loss_mask is None:
        _warn_of_every_token(tokens)
        return None
    is_auto = _is_auto(loss_mask)
    mask = tokens.loss_mask_beside() if is_auto else as_token_source(loss_mask, is_loss_mask=True)
    if isinstance(mask, MixtureSource):
        return mask.as_mask_of(tokens)  # raises, and says why: these tokens are no mixture
    if is_auto and isinstance(mask, TokenFileSource) and isinstance(tokens, TokenFileSource):
        _check_lengths(tokens, mask)  # nobody chose this mask; one that is given is only checked batch by batch
    if mask is None:
        _warn_of_missing_mask(tokens)
    return mask


def _of_mixture(tokens: MixtureSource, loss_mask: Any) -> TokenSource | None:
    """Returns a mixture's mask: each component's mask, or ones for a component without; None if none has a mask."""
    masks: Mapping[str, Any]
    if loss_mask is None:
        masks = dict.fromkeys(tokens.sources)
    elif _is_auto(loss_mask):
        masks = {}
    elif isinstance(loss_mask, MixtureSource):
        masks = loss_mask.sources
    elif isinstance(loss_mask, Mapping) and all(isinstance(name, str) for name in loss_mask):
        masks = loss_mask
    else:
        raise TokenSourceError(
            "tokens are given by component, but the loss mask is not; give it the same way, {NAME: mask}, for the "
            "components that have one"
        )
    unknown = [name for name in masks if name not in tokens.sources]
    found = {name: loss_mask_of(source, masks.get(name, AUTO)) for name, source in tokens.sources.items()}
    found |= {name: as_token_source(masks[name], is_loss_mask=True) for name in unknown}  # `as_mask_of` refuses these
    present = {name: mask for name, mask in found.items() if mask is not None}
    return MixtureSource(present).as_mask_of(tokens) if present else None


def _is_auto(loss_mask: Any) -> bool:
    return isinstance(loss_mask, str) and loss_mask == AUTO  # an array would compare each of its items


def _warn_of_every_token(tokens: TokenSource) -> None:
    """Warns once that loss_mask=None trains on prompts too, if a mask lies beside the tokens."""
    mask = None
    with suppress(OSError, ValueError):  # nobody asked for the mask, so nothing fails because of it
        mask = tokens.loss_mask_beside()
    if mask is not None:
        warnings.warn(
            f"every token of {tokens.where} is trained on, also those that its loss mask {mask.where} leaves out: "
            "loss_mask=None was given; leave it out to use the mask",
            stacklevel=2,  # always the same line, so that Python shows it once
        )


def _warn_of_missing_mask(tokens: TokenSource) -> None:
    """Warns once that prompts are trained on too, if there is a sign that the tokens should have a mask."""
    sign = ""
    with suppress(OSError, ValueError):  # nobody asked for the mask, so nothing fails because of it
        sign = tokens.sign_of_mask()
    if sign:
        warnings.warn(
            f"every token of {tokens.where} is trained on, prompts too, although {sign}: give the mask as loss_mask=, "
            "or loss_mask=None if you mean it",
            stacklevel=2,  # always the same line, so that Python shows it once
        )


def _check_lengths(tokens: TokenFileSource, mask: TokenFileSource) -> None:
    """Checks that a mask file has the tokens' lengths; an earlier run of a tool may have left another mask there."""
    way_out = "write both again, as `packhorse tokenize` does, or give loss_mask=None to train on every token"
    if len(mask) != len(tokens):
        raise TokenSourceError(
            f"the loss mask {mask.where} is of other tokens: it holds {len(mask):,} sequences, and {tokens.where} "
            f"{len(tokens):,}; {way_out}"
        )
    for first in range(0, len(tokens), CHUNK_ELEMENTS):
        ids = np.arange(first, min(first + CHUNK_ELEMENTS, len(tokens)))
        of_mask, of_tokens = mask.lengths(ids), tokens.lengths(ids)
        if (of_mask != of_tokens).any():
            i = int((of_mask != of_tokens).argmax())
            raise TokenSourceError(
                f"the loss mask {mask.where} is of other tokens: its sequence {ids[i]} holds {of_mask[i]} values, and "
                f"that of {tokens.where} {of_tokens[i]} tokens; {way_out}"
            )
